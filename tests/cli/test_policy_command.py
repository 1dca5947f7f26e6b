"""``halfstep policy`` and ``train --policy``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import Result
from user_recipes import Invoke

import halfstep as hs


def test_policy_prints_a_device_by_category(halfstep: Invoke) -> None:
    result = halfstep("policy", "--device", "cuda")
    assert result.exit_code == 0
    categories = [p.splitlines()[0].split(" (")[0] for p in result.stdout.split("\n\n")[:-1]]
    assert categories == ["CUDA, low", "CUDA, fp32", "CUDA, promote", "CUDA, refused"]
    assert " softmax.int* " in result.stdout.replace("\n", " ")
    assert " linear " in result.stdout.replace("\n", " ")


def test_policy_of_one_op_shows_both_devices(halfstep: Invoke) -> None:
    lines = halfstep("policy", "--op", "softmax").stdout.splitlines()
    assert lines[0].split() == ["op", "cpu", "cuda"]
    ops = [line.split() for line in lines[1 : lines.index("")]]
    expected = [["softmax.int", "inputs", "fp32", "differs"]]
    if hasattr(torch.ops.aten.softmax, "Dimname"):  # torch 2.10 has named dimensions
        expected.insert(0, ["softmax.Dimname", "inputs", "fp32", "differs"])
    assert ops == expected


def test_policy_as_json(halfstep: Invoke) -> None:
    found = json.loads(halfstep("policy", "--op", "linear", "--json").stdout)
    assert found == {"ops": [{"op": "linear", "cpu": "low", "cuda": "low", "differs": False}]}
    everything = json.loads(halfstep("policy", "--json").stdout)["ops"]
    assert len(everything) > 190


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("policy", "--op", "sofmax"), "torch has no op 'sofmax'; did you mean 'softmax'?"),
        (("policy", "--device", "cda"), "got 'cda'; did you mean 'cuda'?"),
        (("train", "my.py:build", "--policy", "none.toml"), "cannot read the policy 'none.toml'"),
        (("train", "my.py:build", "--policy", "cdua"), "--policy must be 'cuda', 'device' or the"),
        (("train", "my.py:build", "--policy", "other.toml"), "'hed' matches no module of Linear."),
    ],
)
def test_bad_input_is_one_line(
    halfstep: Invoke, folder: Path, arguments: tuple[str, ...], message: str
) -> None:
    (folder / "other.toml").write_text('format = "fp16"\n[modules]\nhed = "fp32"\n')
    result = halfstep(*arguments)
    (line,) = [line for line in result.stderr.splitlines() if "precision: " not in line]
    assert message in line
    assert result.exit_code == 2


def train(halfstep: Invoke, *arguments: str) -> hs.RunRecord:
    result = halfstep("train", "my.py:build", "--steps", "2", "--record", "run.jsonl", *arguments)
    assert result.exit_code == 0, result.stderr
    return hs.RunRecord.load("run.jsonl")


def test_train_runs_cudas_policy(halfstep: Invoke) -> None:
    run = train(halfstep, "--policy", "cuda")
    assert (run.format, run.settings["policy"]) == ("fp16", "fp16, CUDA's op list")
    run = train(halfstep, "--policy", "cuda", "--precision", "bf16")
    assert (run.format, run.settings["policy"]) == ("bf16", "bf16, CUDA's op list")


def test_train_runs_a_policy_file(halfstep: Invoke, folder: Path) -> None:
    hs.Policy("fp16", ops={"pow": "low"}, init_scale=8.0).save(folder / "precision.toml")
    run = train(halfstep, "--policy", "precision.toml")
    assert (run.format, run.steps[0].loss_scale) == ("fp16", 8.0)
    assert run.settings["policy"] == "fp16, pow in low"


def test_precision_wins_over_the_file_and_says_so(
    halfstep: Invoke, folder: Path, messages: Callable[[Result], list[str]]
) -> None:
    hs.Policy("fp16").save(folder / "precision.toml")
    result = halfstep(
        *("train", "my.py:build", "--steps", "1"),
        *("--policy", "precision.toml", "--precision", "bf16"),
    )
    assert "halfstep: --precision bf16 wins over fp16 of precision.toml" in messages(result)


def test_comparison_keeps_the_policy(halfstep: Invoke) -> None:
    result = halfstep(
        "train", "my.py:build", "--steps", "1", "--compare", "--policy", "cuda", "--json"
    )
    runs = json.loads(result.stdout)["runs"]
    assert [run["format"] for run in runs] == ["fp32", "bf16", "fp16"]
    assert runs[2]["settings"]["policy"] == "fp16, CUDA's op list"


def test_table_says_whose_policy_it_shows(halfstep: Invoke) -> None:
    result = halfstep("train", "my.py:build", "--steps", "1", "--policy", "cuda")
    assert "policy: fp16, CUDA's op list" in result.stdout
