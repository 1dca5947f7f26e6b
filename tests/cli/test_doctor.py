"""``halfstep doctor``: the verdict first, exit codes, JSON, errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from user_recipes import Invoke

import halfstep as hs

SICK = """
import math
import torch
from torch import nn
from my import make

class Squares(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 1)
        nn.init.constant_(self.fc.weight, 1000.0)

    def forward(self, x):
        y = self.fc(x)
        return y * y  # line 15

def loss_fn(model, batch):
    return model(batch).float().mean()

def overflow():
    import dataclasses
    return dataclasses.replace(make(loss_fn), model=Squares)

def own_mistake():
    def loss_fn(model, batch):
        return (model(batch) @ torch.ones(7)).mean()  # line 26
    return make(loss_fn)
"""


@pytest.fixture(autouse=True)
def sick(folder: Path) -> None:
    (folder / "sick.py").write_text(SICK)


def test_healthy_recipe_is_0_and_says_so_first(halfstep: Invoke) -> None:
    result = halfstep("doctor", "my.py:sums")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0].startswith("Healthy in FP32, BF16 and FP16")
    assert "loss scales that are safe" in result.stdout


def test_finding_is_1_and_the_first_line_is_the_verdict(halfstep: Invoke) -> None:
    result = halfstep("doctor", "sick.py:overflow")
    assert result.exit_code == 1
    first = "FP16 overflows in aten.mul in Squares (forward, float16, sick.py:15)."
    assert result.stdout.splitlines()[0] == first
    assert "1. overflow in aten.mul in Squares" in result.stdout
    assert 'What to do: Keep fc in FP32: modules={"fc": "fp32"} in hs.Policy' in result.stdout
    assert "bits of headroom are missing" in result.stdout


def test_last_line_is_what_it_cost_and_what_was_left_out(halfstep: Invoke) -> None:
    bounded = halfstep("doctor", "my.py:sums", "--max-seconds", "1e-9").stdout
    bounded = " ".join(bounded.split())
    assert "of at most 1e-09 s, and" in bounded
    assert "not looked at for want of time: the pass fp16, the pass fp16 scaled" in bounded
    assert "not looked at" not in halfstep("doctor", "my.py:sums").stdout


def test_json_is_the_record_and_nothing_else(halfstep: Invoke) -> None:
    result = halfstep("doctor", "sick.py:overflow", "--json")
    assert result.exit_code == 1
    found = hs.Diagnosis.from_dict(json.loads(result.stdout))
    assert (found.health, found.causes[0].kind) == ("precision", "overflow")


@pytest.mark.parametrize(("recipe", "code"), [("my.py:sums", 0), ("sick.py:overflow", 1)])
def test_one_symptom_shows_that_check_and_its_verdict(
    halfstep: Invoke, recipe: str, code: int
) -> None:
    result = halfstep("doctor", recipe, "--symptom", "activations-overflow")
    assert result.exit_code == code
    assert "activations-overflow" in result.stdout
    assert "custom-op" not in result.stdout


def test_dtypes_shows_the_picture(halfstep: Invoke) -> None:
    result = halfstep("doctor", "my.py:sums", "--dtypes")
    assert result.exit_code == 0
    for stage in ("input", "weights", "layer", "loss", "gradient", "update"):
        assert f"  {stage} " in result.stdout
    assert "bfloat16" in result.stdout


def test_layers_and_steps_add_their_tables(halfstep: Invoke) -> None:
    result = halfstep("doctor", "my.py:sums", "--layers", "--steps", "3")
    assert "largest magnitude" in result.stdout
    assert "BF16, 3 steps: mean loss difference" in result.stdout


def test_repro_is_written_and_named(halfstep: Invoke, folder: Path) -> None:
    result = halfstep("doctor", "sick.py:overflow", "--repro", "bug")
    assert result.stdout.splitlines()[-1] == "written: bug/repro.py"
    assert (folder / "bug" / "inputs.pt").exists()
    healthy = halfstep("doctor", "my.py:sums", "--repro", "none")
    assert healthy.stdout.splitlines()[-1] == "no op to reproduce"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["my.py:none"], "my.py has no function 'none'"),
        (["my.py:empty"], "batches() of recipe 'mine' has no batch number 0"),
        (
            ["my.py:build", "--policy", "tpu"],
            "policy must be 'cuda', 'device', a Policy or the path",
        ),
        (["my.py:build", "--symptom", "cough"], "symptom must be one of clipped-gradients"),
        (["my.py:build", "--max-seconds", "0"], "max_seconds must be a number above 0, got 0.0"),
        (["my.py:build", "--batch", "-1"], "batch must be a whole number of at least 0"),
        (["my.py:tuple_loss"], "the loss must be a scalar tensor or an hs.LossSum, got tuple"),
    ],
)
def test_what_cannot_run_is_one_line_with_code_2(
    halfstep: Invoke, options: list[str], text: str
) -> None:
    result = halfstep("doctor", *options)
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("halfstep: ")
    assert text in line


def test_error_in_the_users_loss_shows_the_users_frames_only(
    halfstep: Invoke, folder: Path
) -> None:
    result = halfstep("doctor", "sick.py:own_mistake")
    assert (result.exit_code, result.stdout) == (2, "")
    frames = [line.strip() for line in result.stderr.splitlines() if line.startswith("  File ")]
    assert frames == [f'File "{folder / "sick.py"}", line 26, in loss_fn']
    assert result.stderr.splitlines()[-1].startswith("RuntimeError: size mismatch")
