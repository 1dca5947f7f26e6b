"""The linter: its start, its speed against TorchFix, and all of torch and the standard library.

    python benchmarks/check.py            # about two minutes; TorchFix is the `bench` extra
    python benchmarks/check.py --quick    # few rounds, nothing written

All on one core. A start is the processor time of whole processes, which other work on the machine
disturbs less than wall time, in turn with ``python -c "import ast, argparse"`` (nothing that parses
Python can be faster) and with ``python -c pass``. TorchFix and halfstep read copies of the same
files. Most files have no training step; halfstep sees that from their words and does not parse
them, so that a second number tells what it does with files that train.
"""

from __future__ import annotations

import argparse
import compileall
import importlib.util
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from datetime import date
from pathlib import Path

import halfstep
from halfstep.check.linter import check_paths
from halfstep.rules.registry import load, select

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.update import machine, quartiles

BASE = [sys.executable, "-c", "import ast, argparse"]
EMPTY = [sys.executable, "-c", "pass"]
HALFSTEP = [str(Path(sys.executable).parent / "halfstep"), "check", "--isolated", "--jobs", "1"]
FOLDERS = ("optim", "nn", "amp", "fx")


def seconds(command: list[str], folder: Path) -> float:
    """Wall time of a process."""
    start = time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    elapsed = time.perf_counter() - start
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{command} failed: {done.stderr.decode()[-500:]}")
    return elapsed


def processor_seconds(command: list[str], folder: Path) -> float:
    """Processor time of a process, user and system."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds(command, folder)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def starts(folder: Path, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Quartiles of the time of a check over that of a start without one, within a round."""
    scripts = {
        "no training": "print('hello')\n",
        "correct": load("HS101").good,
        "mistake": load("HS101").bad,
    }
    bases = {"import ast, argparse": BASE, "pass": EMPTY}
    ours: dict[str, list[float]] = {name: [] for name in scripts}
    bare: dict[str, list[float]] = {name: [] for name in bases}
    for name, text in scripts.items():
        (folder / f"{name.replace(' ', '_')}.py").write_text(text)
    for _ in range(rounds):
        for name, command in bases.items():
            bare[name].append(processor_seconds(command, folder))
        for name in scripts:
            path = f"{name.replace(' ', '_')}.py"
            ours[name].append(processor_seconds([*HALFSTEP, path], folder))
    return {
        base: {name: quartiles(ours[name], times) for name in scripts}
        for base, times in bare.items()
    }


def torch_root() -> Path:
    """Folder of the installed torch, which is not imported."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def copied(folder: Path) -> int:
    """The four folders of torch in `folder`; returns the number of lines."""
    lines = 0
    for name in FOLDERS:
        for path in (torch_root() / name).rglob("*.py"):
            target = folder / "torch" / path.relative_to(torch_root())
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
            lines += target.read_bytes().count(b"\n")
    return lines


def against_torchfix(folder: Path, rounds: int) -> dict[str, object]:
    """Lines per second of both, in turn."""
    lines = copied(folder)
    ours = statistics.median(seconds([*HALFSTEP, "torch"], folder) for _ in range(2 * rounds + 1))
    result: dict[str, object] = {"lines": lines, "halfstep_lines_per_s": round(lines / ours)}
    torchfix = Path(sys.executable).parent / "torchfix"
    if rounds == 1 or not torchfix.exists():
        print("without TorchFix, which takes minutes; it is the extra halfstep[bench]")
        return result
    theirs = seconds([str(torchfix), "-j", "1", "torch"], folder)
    ours = min(ours, seconds([*HALFSTEP, "torch"], folder))
    result["torchfix_lines_per_s"] = round(lines / theirs)
    result["times_torchfix"] = round(theirs / ours, 1)
    return result


def training_lines(copies: int) -> int:
    """Lines per second over files that all train, in this process."""
    text = "\n".join(f"def train{n}():\n    {_indented(load('HS101').bad)}" for n in range(20))
    with tempfile.TemporaryDirectory() as name:
        for number in range(copies):
            (Path(name) / f"a{number}.py").write_text(text)
        start = time.perf_counter()
        check_paths([name], select(), jobs=1)
        return round(copies * text.count("\n") / (time.perf_counter() - start))


def _indented(text: str) -> str:
    return text.replace("\n", "\n    ")


def everything(root: Path) -> dict[str, object]:
    """A check of every file, tests too: how many, how fast, and what went wrong."""
    found = sorted(path.relative_to(root) for path in root.rglob("*.py"))
    paths = [str(root / path) for path in found if "site-packages" not in path.parts]
    start = time.perf_counter()
    report = check_paths(paths, select(), jobs=1)
    elapsed = time.perf_counter() - start
    broken = [text for _, text, _ in report.problems if "halfstep failed" in text]
    return {
        "files": len(paths),
        "seconds": round(elapsed, 1),
        "failures_of_halfstep": len(broken),
        "not_python": len(report.problems) - len(broken),
        "findings": len(report.findings),
    }


def main() -> None:
    """Print a table and keep it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="few rounds, nothing written")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rounds = 5 if options.quick else 40
    compileall.compile_dir(Path(halfstep.__file__).parent, quiet=1)  # as an installation does
    with tempfile.TemporaryDirectory() as name:
        result: dict[str, object] = {
            "date": date.today().isoformat(),
            **machine(),
            "command": "python benchmarks/check.py",
            "start_over_bare_python": starts(Path(name), rounds),
            "torch_folders": against_torchfix(Path(name), 1 if options.quick else 3),
            "training_lines_per_s": training_lines(2 if options.quick else 10),
            "all_of_torch": everything(torch_root()),
            "standard_library": everything(Path(sysconfig.get_path("stdlib"))),
        }
    text = json.dumps(result, indent=2)
    print(text)
    if not options.quick:
        (options.out / f"{date.today().isoformat()}-check.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
