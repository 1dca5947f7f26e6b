"""`tests/gpu` on the device, before anything is timed: speed of wrong results is worth nothing."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.gpu_bench.cases import Case, LeftOut, Measured
from benchmarks.gpu_bench.setup import Setup

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 120


def cases(setup: Setup) -> Iterator[Case]:
    where = "tests/gpu/test_zero_gradients_cuda.py" if setup.is_tiny else "tests/gpu"
    yield Case("tests", where, lambda: run_tests(where, SECONDS))


def run_tests(where: str, seconds: float) -> Measured:
    """Run tests in a process of their own, for so many seconds at most."""
    if importlib.util.find_spec("pytest") is None:
        raise LeftOut("pytest is not installed (pip install 'halfstep[dev]')")
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", where]
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Measured(failure=f"the tests took longer than {seconds:g} s")
    return read_summary(where, done.returncode, done.stdout)


def read_summary(where: str, code: int, output: str) -> Measured:
    """Counts from pytest's last line, and the names of what failed."""
    lines = output.strip().splitlines() or [""]
    counts = {word: int(count) for count, word in re.findall(r"(\d+) ([a-z]+)", lines[-1])}
    row = {word: counts.get(word, 0) for word in ("passed", "failed", "errors", "skipped")}
    row["errors"] += counts.get("error", 0)
    notes = [line for line in lines if line.startswith(("FAILED", "ERROR"))][:20]
    failure = f"pytest ended with exit code {code}: {lines[-1]}" if code else None
    return Measured({where: row}, notes, failure)
