"""Mutation run: does a test fail when one line of the source is changed?

python scripts/mutate.py --seed 1 --count 240 --jobs 2 --out mutants.json
python scripts/mutate.py --only update/optimizers/norm.py:84      # every mutant of one line

Random lines, the same ones for the same seed and source, are changed one at a time in a copy of
the project. The tests run there: those beside the changed file first, then the rest of `TESTS`,
slow ones last. A mutant is killed if a test fails or if the tests do not end. A survivor is a
change that nobody notices: its line wants a test, or the change is equivalent.

Every result goes into the file of ``--out`` at once; ``--resume`` goes on from there.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, replace
from pathlib import Path
from queue import SimpleQueue

from mutants import Mutant, draw, find_mutants

ROOT = Path(__file__).resolve().parents[1]
PATHS = ["src/halfstep/update", "src/halfstep/training"]
TESTS = ["tests/update", "tests/training", "tests/contract", "tests/test_cases.py", "tests/tools"]
_NOT_COPIED = (".git", ".venv*", "__pycache__", ".*_cache", ".hypothesis")
_PYTEST = ["-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
_MEMORY_BYTES = 8 * 2**30
_PASSED, _USAGE_ERROR, _NOTHING_SELECTED = 0, 4, 5


class Project:
    """A copy of the project in which mutants are tried; the original is only read.

    Args:
        folder: Where to; made here.
    """

    def __init__(self, folder: Path) -> None:
        shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*_NOT_COPIED))
        self.folder = folder
        self._environment = os.environ | {
            "PYTHONPATH": str(folder / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",  # else a change within a second would go unnoticed
            "OMP_NUM_THREADS": "1",  # threads of two runs wait for each other, for minutes
        }
        where = [sys.executable, "-c", "import halfstep; print(halfstep.__file__)"]
        found = subprocess.run(
            where, cwd=folder, env=self._environment, capture_output=True, text=True, check=True
        ).stdout
        if not Path(found.strip()).is_relative_to(folder):
            raise SystemExit(f"the tests would import halfstep from {found.strip()}")

    def judge(self, mutant: Mutant, timeout: float) -> Mutant:
        """The mutant with the test that killed it, if one did."""
        file = self.folder / mutant.path
        source = file.read_text(encoding="utf-8")
        try:
            file.write_text(mutant.applied(source), encoding="utf-8")
            stages = (self.first_failure(stage, timeout) for stage in self._stages(file))
            return replace(mutant, killed_by=next(filter(None, stages), None))
        finally:
            file.write_text(source, encoding="utf-8")

    def first_failure(self, selection: Iterable[str], timeout: float) -> str | None:
        """The first test that fails, "timeout" after so many seconds, ``None`` if all pass."""
        process = subprocess.Popen(
            [sys.executable, *_PYTEST, *selection],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        if sys.platform == "linux":  # a loop that never ends may fill a list
            resource.prlimit(process.pid, resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
        try:
            output, _ = process.communicate(timeout=timeout)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # and what the tests have started
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                return "timeout"
            raise
        if process.returncode in (_PASSED, _NOTHING_SELECTED):
            return None
        if process.returncode == _USAGE_ERROR:
            raise SystemExit(f"pytest did not run:\n{output}")
        failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
        return failed[1] if failed else f"exit code {process.returncode}"

    def _stages(self, mutated: Path) -> list[list[str]]:
        """The selections of tests: beside the file, the rest, slow ones."""
        beside = f"tests/{mutated.relative_to(self.folder / 'src' / 'halfstep').parts[0]}"
        near = [beside] if (self.folder / beside).is_dir() else []
        rest = [path for path in TESTS if path not in near]
        quick = ["-m", "not slow"]
        stages = [[*quick, *self._ordered(each, mutated)] for each in (near, rest) if each]
        return [*stages, ["-m", "slow", *near, *rest]]

    def _ordered(self, tests: Sequence[str], mutated: Path) -> list[str]:
        """Test files, those first that name most of what the mutated file defines."""
        body = ast.parse(mutated.read_text(encoding="utf-8")).body
        kinds = (ast.ClassDef, ast.FunctionDef)
        names = {mutated.stem, *(node.name for node in body if isinstance(node, kinds))}

        def key(file: Path) -> tuple[int, int]:
            text = file.read_text(encoding="utf-8")
            named = sum(name in text for name in names) + 3 * (mutated.stem in file.stem)
            return -named, len(text)

        paths = [self.folder / test for test in tests]
        files = [f for p in paths for f in ([p] if p.is_file() else sorted(p.glob("test_*.py")))]
        return [str(file.relative_to(self.folder)) for file in sorted(files, key=key)]


def main() -> int:
    """Draw, run, print and write; returns 1 if a mutant survived."""
    options = _options()
    sources = _sources(options.paths)
    if options.only:
        mutants = _of_line(options.only, sources)
    else:
        mutants = draw(sources, options.seed, options.count)
    known = {_key(m): m for m in (_read(options.out) if options.resume else [])}
    judged = [known[_key(m)] for m in mutants if _key(m) in known]
    waiting = [m for m in mutants if _key(m) not in known]
    print(f"{len(waiting)} mutants to try, {len(judged)} judged before", flush=True)
    for mutant, seconds in _run(waiting, options.jobs):
        judged.append(mutant)
        verdict = f"killed by {mutant.killed_by}" if mutant.killed_by else "SURVIVED"
        count = f"[{len(judged)}/{len(mutants)}]"
        print(f"{count} {mutant.path}:{mutant.line} {seconds:.0f} s {verdict}", flush=True)
        if options.out:
            text = json.dumps([asdict(each) for each in judged], indent=1)
            options.out.write_text(text + "\n", encoding="utf-8")
    survivors = [mutant for mutant in judged if mutant.killed_by is None]
    print(f"{len(judged) - len(survivors)} killed, {len(survivors)} survived")
    for m in survivors:
        print(f"\n{m.path}:{m.line} {m.kind}\n- {m.before}\n+ {m.after}")
    return 1 if survivors else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Change random lines; does a test fail?")
    parser.add_argument("--seed", type=int, default=1, help="which lines and changes")
    parser.add_argument("--count", type=int, default=240, help="how many lines")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    parser.add_argument("--paths", nargs="+", default=PATHS, help="folders or files of the source")
    parser.add_argument("--only", metavar="FILE:LINE", help="every mutant of this line")
    parser.add_argument("--out", type=Path, help="JSON file for all results")
    parser.add_argument("--resume", action="store_true", help="keep what --out holds already")
    options = parser.parse_args()
    if options.resume and options.out is None:
        parser.error("--resume needs the file of --out")
    return options


def _sources(paths: Sequence[str]) -> dict[str, str]:
    """Path from the root to source."""
    places = [ROOT / path for path in paths]
    files = [f for p in places for f in ([p] if p.is_file() else sorted(p.rglob("*.py")))]
    if not files:
        raise SystemExit(f"no Python file in {', '.join(paths)}")
    return {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in files}


def _of_line(place: str, sources: dict[str, str]) -> list[Mutant]:
    name, _, line = place.rpartition(":")
    paths = [path for path in sources if f"/{path}".endswith(f"/{name}")]
    if not line.isdigit() or len(paths) != 1:
        raise SystemExit(f"--only takes FILE:LINE, the end of one path, got {place!r}: {paths}")
    found = find_mutants(sources[paths[0]], paths[0])
    return [mutant for mutant in found if mutant.line == int(line)]


def _run(mutants: Sequence[Mutant], jobs: int) -> Iterator[tuple[Mutant, float]]:
    """Each judged mutant as soon as it is known, with the seconds that it took."""
    if not mutants:
        return
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        projects = [Project(Path(folder).resolve() / str(number)) for number in range(jobs)]
        timeout = _time_of_all_tests(projects[0]) * 2 * jobs + 60
        free: SimpleQueue[Project] = SimpleQueue()
        for project in projects:
            free.put(project)

        def judge(mutant: Mutant) -> tuple[Mutant, float]:
            project, start = free.get(), time.monotonic()
            try:
                return project.judge(mutant, timeout), time.monotonic() - start
            finally:
                free.put(project)

        with ThreadPoolExecutor(jobs) as pool:
            futures = [pool.submit(judge, mutant) for mutant in mutants]
            try:
                for future in as_completed(futures):
                    yield future.result()
            finally:
                pool.shutdown(cancel_futures=True)


def _time_of_all_tests(project: Project) -> float:
    """Seconds for the tests of the unchanged source, which have to pass."""
    start = time.monotonic()
    if failed := project.first_failure(TESTS, timeout=3600):
        raise SystemExit(f"{failed} fails without any change")
    return time.monotonic() - start


def _read(path: Path) -> list[Mutant]:
    if not path.exists():
        return []
    return [Mutant(**fields) for fields in json.loads(path.read_text(encoding="utf-8"))]


def _key(mutant: Mutant) -> tuple[str, int, str, str]:
    return mutant.path, mutant.line, mutant.before, mutant.after


if __name__ == "__main__":
    sys.exit(main())
