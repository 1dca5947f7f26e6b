"""`benchmarks/gpu.py` from end to end on the emulated device, and where there is no device."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from accelerate_state import fresh_accelerate
from benchmarks import gpu
from emulated import emulated_device

ROOT = Path(__file__).resolve().parent.parent
EPS = {"bf16": torch.finfo(torch.bfloat16).eps, "fp16": torch.finfo(torch.float16).eps}
needs_cpu_build = pytest.mark.skipif(
    torch.version.cuda is not None, reason="a torch for CUDA compiles and profiles: run the script"
)


class Run(NamedTuple):
    """A whole run: exit code, what it printed, and its two files."""

    code: int
    printed: str
    report: dict[str, Any]
    text: str
    names: list[str]

    def entries(self, section: str) -> dict[str, dict[str, Any]]:
        return {e["name"]: e for e in self.report["cases"] if e["section"] == section}


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    with fresh_accelerate():
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("gpu")
    printed: list[str] = []
    with pytest.MonkeyPatch.context() as patch, fresh_accelerate(), emulated_device():
        patch.setattr("builtins.print", lambda *parts, **_: printed.append(" ".join(parts)))
        code = gpu.main(["--tiny", "--out", str(folder)])
    (data,) = folder.glob("*.json")
    names = sorted(path.name for path in folder.iterdir())
    text = data.with_suffix(".txt").read_text()
    return Run(code, "\n".join(printed), json.loads(data.read_text()), text, names)


@needs_cpu_build
def test_every_section_comes_to_its_end_on_the_emulated_device(run: Run) -> None:
    assert run.code == 0, run.printed
    sections = list(dict.fromkeys(entry["section"] for entry in run.report["cases"]))
    assert sections == list(gpu.SECTIONS)
    assert not [e for e in run.report["cases"] if {"error", "failure"} & e.keys()]


@needs_cpu_build
def test_only_what_a_cpu_build_of_torch_cannot_do_is_left_out(run: Run) -> None:
    left_out = {
        (e["section"], e["name"]): e["left_out"] for e in run.report["cases"] if "left_out" in e
    }
    assert left_out == {
        ("kernels", "all"): "this torch was built without CUPTI, so that its profiler sees no"
        " kernels",
        ("training", "compiled"): "torch.compile needs Triton for a CUDA device, and there is none"
        " that fits",
    }


@needs_cpu_build
def test_both_files_say_what_was_printed_and_where_it_was_measured(run: Run) -> None:
    date = run.report["date"]
    assert run.names == [f"{date}-gpu-emulated-device.json", f"{date}-gpu-emulated-device.txt"]
    assert run.report["device"] == "Emulated device"
    assert run.report["command"].startswith("python benchmarks/gpu.py --tiny --out ")
    assert run.report["minutes"] == 10
    for entry in run.report["cases"]:
        for name in entry.get("rows", [entry["name"]]):
            assert name in run.text
            assert name in run.printed


@needs_cpu_build
def test_no_fused_step_of_halfstep_waits_and_torchs_average_does(run: Run) -> None:
    (entry,) = run.entries("waits").values()
    waits = {name: row["waits"] for name, row in entry["rows"].items()}
    assert waits.pop("stock, average ResNet-50 fp16, window of 1") > 0  # it asks for its count
    assert {name: count for name, count in waits.items() if count} == {}
    assert {"halfstep GPT-2 fp16, window of 4", "halfstep with LossSum"} <= waits.keys()


@needs_cpu_build
def test_trainings_are_the_same_whoever_makes_the_steps(run: Run) -> None:
    # oracle: torch's own loop, by the loss of the last of some dozen steps
    trainings = {**run.entries("training"), **run.entries("followers")}
    trainings.pop("compiled")
    assert len(trainings) == 8 - 1 + 1  # the followers train what one of the eight does
    for name, entry in trainings.items():
        rows = {way: row for way, row in entry["rows"].items() if "loss" in row}
        eps = EPS["bf16" if "bf16" in name else "fp16"]
        assert all(row["loss_scale"] == rows["stock"]["loss_scale"] for row in rows.values()), name
        for way, row in rows.items():
            assert math.isclose(row["loss"], rows["stock"]["loss"], rel_tol=8 * eps), (name, way)


@needs_cpu_build
def test_every_way_of_a_training_has_its_columns(run: Run) -> None:
    columns = {"ms", "against", "time_ratio", "tokens_per_s"}
    entry = run.entries("training")["GPT-2 fp16, window of 4"]
    for name, row in entry["rows"].items():
        own = set() if name.endswith(", read") else {"peak_bytes", "loss", "loss_scale"}
        assert row.keys() == columns | own
        assert len(row["ms"]) == 3
        assert row["ms"][0] <= row["ms"][1] <= row["ms"][2]
    assert entry["rows"]["halfstep, read"]["against"] == "stock, read"
    assert entry["notes"] == ["2 samples in a micro-batch, 1 steps in a round, 2 rounds"]


@needs_cpu_build
def test_device_time_is_known_exactly_where_the_update_does_not_wait(run: Run) -> None:
    entries = run.entries("update")
    assert list(entries) == [
        "after the backward, 4 x 8",
        "after the backward, GPT-2",
        "after the backward, ResNet-50",
    ]
    for entry in entries.values():
        unknown = {name for name, row in entry["rows"].items() if row["device_us"] is None}
        waiting = {"stock, average bf16", "stock fp16, foreach", "halfstep fp16, foreach"}
        assert unknown == waiting
    assert "halfstep, rollback bf16" in entries["after the backward, ResNet-50"]["rows"]


@needs_cpu_build
def test_run_without_out_writes_nothing_when_tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    written = sorted(gpu.RESULTS.iterdir())
    with emulated_device():
        assert gpu.main(["--tiny", "--only", "norm"]) == 0
    assert sorted(gpu.RESULTS.iterdir()) == written


@needs_cpu_build
def test_minutes_that_are_over_leave_out_the_rest_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with emulated_device():
        code = gpu.main(
            ["--tiny", "--minutes", "0.00001", "--only", "norm", "--only", "waits",
             "--out", str(tmp_path)]
        )  # fmt: skip
    assert code == 0
    (data,) = tmp_path.glob("*.json")
    entries = json.loads(data.read_text())["cases"]
    assert [entry["section"] for entry in entries] == ["waits", "norm"]
    assert all("left_out" in entry for entry in entries)
    assert "norm: accumulated in float64 and in float32" in capsys.readouterr().out


def test_without_cuda_it_is_one_sentence_and_exit_code_2() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "benchmarks/gpu.py"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    (sentence,) = done.stderr.splitlines()
    assert "needs a CUDA device" in sentence
    assert sentence.endswith(".")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--minutes", "0"], "--minutes must be positive and finite, got 0"),
        (["--minutes", "nan"], "--minutes must be positive and finite, got nan"),
        (["--minutes", "inf"], "--minutes must be positive and finite, got inf"),
        (["--only", "speed"], "invalid choice: 'speed'"),
    ],
)
def test_bad_option_is_one_sentence_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        gpu.main(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_folder_that_cannot_be_written_is_one_sentence_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    with emulated_device():
        assert gpu.main(["--tiny", "--out", str(tmp_path / "file" / "below")]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == f"cannot write results to {tmp_path / 'file' / 'below'}: Not a directory.\n"


@needs_cpu_build
def test_run_of_one_section_leaves_the_files_of_the_whole(tmp_path: Path) -> None:
    whole = tmp_path / "2026-12-01-gpu-emulated-device.json"
    whole.write_text("{}")
    with emulated_device():
        arguments = ["--tiny", "--only", "norm", "--only", "update", "--out", str(tmp_path)]
        assert gpu.main(arguments) == 0
    assert whole.read_text() == "{}"
    (new,) = set(tmp_path.glob("*.json")) - {whole}
    assert new.name.endswith("-gpu-emulated-device-update-norm.json")
    sections = [entry["section"] for entry in json.loads(new.read_text())["cases"]]
    assert list(dict.fromkeys(sections)) == ["update", "norm"]
