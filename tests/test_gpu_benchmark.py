"""`benchmarks/gpu.py` without a GPU: the script itself runs, and says so where it cannot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SMALL = ("4 x 64", "2 x 4096")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(
        [sys.executable, "benchmarks/gpu.py", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow
def test_gpu_benchmark_on_a_cpu_runs_every_section_that_it_can(tmp_path: Path) -> None:
    results = ROOT / "benchmarks" / "results"
    before = sorted(results.glob("*-gpu-*"))
    done = run("--device", "cpu", "--tiny", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "host syncs: skipped, there are none without a CUDA device" in done.stdout
    assert "tf32  skipped: only CUDA has it" in done.stdout
    (written,) = tmp_path.iterdir()
    report = json.loads(written.read_text())
    assert written.name == f"{report['date']}-gpu-cpu.json"
    assert date.fromisoformat(report["date"]) <= date.today()
    assert report["command"] == "python benchmarks/gpu.py --batch 8 --tiny"
    assert {"torch", "python", "update", "norm", "training", "seconds"} <= report.keys()
    assert set(report["training"]) == {"fp32", "bf16", "fp16"}
    assert set(report["update"]) == {f"{o} {s}" for o in ("AdamW", "SGD") for s in SMALL}
    assert sorted(results.glob("*-gpu-*")) == before


def test_gpu_benchmark_without_cuda_is_one_sentence_and_exit_code_2() -> None:
    done = run()
    assert done.returncode == 2
    assert done.stdout == ""
    (sentence,) = done.stderr.splitlines()
    assert "needs a CUDA device" in sentence
    assert sentence.endswith(".")


def test_gpu_benchmark_on_a_cpu_at_full_size_is_refused() -> None:
    done = run("--device", "cpu")
    assert done.returncode == 2
    assert "--device cpu only tests this script; give --tiny as well" in done.stderr
