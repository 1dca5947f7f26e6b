"""All cases, each in a process of its own with a time limit; what is done is not done again."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import halfstep
from zoo.case import Case

TESTS = Path(__file__).parents[1]


@dataclass(frozen=True)
class Settings:
    """How the cases are run.

    Attributes:
        mode: ``"plain"`` or ``"doctor"``, see `zoo.one_case`.
        folder: One JSON file for each case that is done.
        limit_s: Seconds for one case.
        parallel: Cases at the same time.
        code: What the results belong to: a result of other code is made anew.
    """

    mode: str
    folder: Path
    limit_s: float = 600.0
    parallel: int = 2
    code: str = ""


Result = dict[str, Any]
Command = Callable[[Case, Path], Sequence[str]]


def run_all(
    cases: Iterable[Case],
    settings: Settings,
    show: Callable[[str], None],
    command: Command | None = None,
) -> dict[str, Result]:
    """Results of all cases by name; those with a file are read from it.

    Args:
        cases: What to run.
        settings: How.
        show: Gets a line for each case that ends.
        command: Makes the command line of a case; by default `zoo.one_case` in this Python.
    """
    settings.folder.mkdir(parents=True, exist_ok=True)
    made = command or _command(settings.mode)

    def run(case: Case) -> tuple[str, Result]:
        path = settings.folder / f"{case.name}.json"
        if (before := _result_of(path, settings.code)) is not None:
            return case.name, before
        result = _run_one(case, path, made(case, path), settings)
        show(f"{case.name}: {line_of(result)}")
        return case.name, result

    with ThreadPoolExecutor(settings.parallel) as pool:
        return dict(pool.map(run, cases))


def _command(mode: str) -> Command:
    def command(case: Case, path: Path) -> Sequence[str]:
        return [sys.executable, "-m", "zoo.one_case", case.name, mode, str(path)]

    return command


def fingerprint() -> str:
    """Of the source of halfstep and of the zoo, so that no result outlives what it was made of."""
    digest = hashlib.sha256()
    for folder in (Path(halfstep.__file__).parent, Path(__file__).parent):
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _result_of(path: Path, code: str) -> Result | None:
    if not path.exists():
        return None
    result: Result = json.loads(path.read_text(encoding="utf-8"))
    return result if result.get("code") == code else None


def _run_one(case: Case, path: Path, command: Sequence[str], settings: Settings) -> Result:
    if case.missing:
        return {"skipped": f"{', '.join(case.missing)} not installed"}
    half_written = path.with_suffix(".part")
    command = [*command[:-1], str(half_written)]
    start = time.perf_counter()
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=settings.limit_s,
            env={**os.environ, "PYTHONPATH": _path(), "OMP_NUM_THREADS": "1"},
            cwd=path.parent,
            check=False,
        )
    except subprocess.TimeoutExpired:
        result: Result = {"failed": f"took longer than {settings.limit_s:g} s"}
    else:
        if done.returncode == 0 and half_written.exists():
            result = json.loads(half_written.read_text(encoding="utf-8"))
        else:
            last = next(reversed(done.stderr.strip().splitlines()), "nothing on stderr")
            result = {"failed": f"exit code {done.returncode}: {last}"}
    known = {"name": case.name, "kind": case.kind, "half": case.half, "code": settings.code}
    result = {**known, **result}
    result["wall_s"] = round(time.perf_counter() - start, 1)
    half_written.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    half_written.rename(path)
    return result


def _path() -> str:
    here = Path(halfstep.__file__).parents[1]  # whatever the working folder of the process is
    rest = os.environ.get("PYTHONPATH")
    return os.pathsep.join([str(TESTS), str(here), *([rest] if rest else [])])


def line_of(result: Result) -> str:
    """What came of one case, in a few words.

    Args:
        result: As from `run_all`.
    """
    if "skipped" in result:
        return f"skipped, {result['skipped']}"
    if "failed" in result:
        return f"FAILED, {result['failed']}"
    if "health" not in result:
        errors = {f: _gradient_error(result[f]) for f in ("bf16", "fp16")}
        return f"runs, gradient error {errors['bf16']} in BF16, {errors['fp16']} in FP16"
    return f"{result['problem'] or 'right'} ({result['seconds']} s): {result['headline']}"


def _gradient_error(of_format: Result) -> str:
    return of_format["error"] if "error" in of_format else f"{of_format['gradient_error']:.2g}"
