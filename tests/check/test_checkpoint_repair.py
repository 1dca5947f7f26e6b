"""HS117 put right: the scaler's state is saved and restored, and no run breaks, with AMP or not.

Each program is executed before and after the repair, fresh and from the checkpoints of either, on
stock torch with FP16 autocast on the CPU.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_programs import programs
from torch import nn

from halfstep.check.linter import check_text
from halfstep.check.repair.fix import fix_data
from halfstep.rules import registry

RULES = registry.select()
CASES = programs()
START, NUM_BATCHES = 2.0**10, 3
TOLERANCE = 4 * torch.finfo(torch.float16).eps  # the scale moves what FP16 rounds away
SAVES, LOADS = "caler.state_dict()", "caler.load_state_dict("


def fixed(text: str) -> str:
    return fix_data("train.py", text.encode(), RULES, unsafe=True).new.decode()


def train(text: str, path: Path, amp: bool) -> dict[str, Any]:
    """Run a program, which goes on with the file at `path` if there is one; gives what it saves."""
    names: dict[str, Any] = {"__name__": "train"}
    exec(compile(text, "train.py", "exec"), names)
    torch.manual_seed(5)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    loader = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(NUM_BATCHES)]
    names["main"](argparse.Namespace(amp=amp, path=str(path)), model, optimizer, loader)
    saved: dict[str, Any] = torch.load(path)
    return saved


@pytest.mark.parametrize("name", CASES)
def test_checkpoint_without_its_scaler_is_found(name: str) -> None:
    assert "HS117" in {f.code for f in check_text("train.py", CASES[name], RULES)}


@pytest.mark.parametrize("name", CASES)
def test_repair_is_made_as_far_as_it_is_certain(name: str) -> None:
    new = fixed(CASES[name])
    expected = {"whole": (True, True), "saved": (True, False), "left": (False, False)}
    assert (SAVES in new, LOADS in new) == expected[name.split(":")[0]]


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("left")])
def test_program_that_takes_a_person_stays_as_it_is(name: str) -> None:
    assert fixed(CASES[name]) == CASES[name]


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("left")])
def test_every_run_and_every_file_works_before_and_after(name: str, tmp_path: Path) -> None:
    old, new = CASES[name], fixed(CASES[name])
    ways = itertools.product([(old, new), (new, new), (new, old)], [True, False], [True, False])
    for i, ((first, second), was_on, is_on) in enumerate(ways):
        path, plain = tmp_path / f"{i}.pt", tmp_path / f"{i}-before.pt"
        expected = [train(old, plain, amp)["model"] for amp in (was_on, is_on)]
        found = [train(first, path, was_on)["model"], train(second, path, is_on)["model"]]
        for a, b in zip(found, expected, strict=True):
            for key in a:
                torch.testing.assert_close(a[key], b[key], rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("left")])
@pytest.mark.parametrize("amp", [True, False], ids=["with AMP", "without"])
def test_program_that_is_left_alone_runs(name: str, amp: bool, tmp_path: Path) -> None:
    for _ in range(2):
        train(CASES[name], tmp_path / "a.pt", amp)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("whole")])
def test_scale_of_a_resumed_run_goes_on(name: str, tmp_path: Path) -> None:
    new, path = fixed(CASES[name]), tmp_path / "a.pt"
    assert train(new, path, True)["scaler"]["scale"] == START * 2.0**NUM_BATCHES
    assert train(new, path, True)["scaler"]["scale"] == START * 4.0**NUM_BATCHES


@pytest.mark.parametrize("name", CASES)
def test_repair_is_done_once(name: str) -> None:
    once = fixed(CASES[name])
    assert fixed(once) == once
