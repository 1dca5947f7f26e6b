"""Processes of their own: what starts without torch, entry points, Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import halfstep as hs


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("module", ["halfstep", "halfstep.records", "halfstep.cli.app"])
def test_import_leaves_torch_alone(module: str) -> None:
    result = python("-c", f"import sys, {module}; print('torch' in sys.modules)")
    assert (result.stdout.strip(), result.stderr) == ("False", "")


def test_public_names_are_listed_before_they_are_imported() -> None:
    listed = "{*halfstep.__all__} <= {*dir(halfstep)}"
    result = python("-c", f"import sys, halfstep; print({listed}, 'torch' in sys.modules)")
    assert result.stdout.strip() == "True False"


def test_every_public_name_can_be_imported() -> None:
    assert [name for name in hs.__all__ if getattr(hs, name, None) is None] == []


def test_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'halfstep' has no attribute 'Enigne'"):
        _ = hs.Enigne


def test_module_entry_prints_the_version() -> None:
    result = python("-m", "halfstep", "--version")
    assert (result.returncode, result.stdout) == (0, f"halfstep {hs.__version__}\n")


def test_explain_of_a_negative_number_works_as_a_process() -> None:
    result = python("-m", "halfstep", "explain", "-1e-8", "--format", "fp16")
    assert (result.returncode, result.stderr) == (0, "")
    assert "underflow" in result.stdout  # 1e-8 < 2^-25


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_command_line_without_its_packages_says_what_to_install(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from halfstep.cli import main; main()"
    result = python("-c", code)
    (line,) = result.stderr.splitlines()
    assert "pip install 'halfstep[cli]'" in line
    assert result.returncode == 2  # could not run


SLOW = """
import signal, sys, time
from my import make, mean_square

signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the parent ignores it
calls = []

def loss_fn(model, batch):
    calls.append(batch)
    if len(calls) == 6:
        print("in the sixth step", file=sys.stderr, flush=True)
        time.sleep(60)
    return mean_square(model, batch)

def build():
    return make(loss_fn)
"""


def test_ctrl_c_shows_and_records_the_steps_made(folder: Path) -> None:
    (folder / "slow.py").write_text(SLOW)
    command = ["train", "slow.py:build", "--precision", "fp32", "--record", "run.jsonl"]
    process = subprocess.Popen(
        [sys.executable, "-m", "halfstep", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if line == "in the sixth step\n":
                    break
            process.send_signal(signal.SIGINT)
            stdout, stderr = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "interrupted" in stdout
    assert "Traceback" not in stderr
    run = hs.RunRecord.load("run.jsonl")
    assert (run.status, [step.step for step in run.steps]) == ("interrupted", [1, 2, 3, 4, 5])
