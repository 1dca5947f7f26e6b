"""Repairs break no program: before and after, with AMP and without, fresh and resumed."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from halfstep.check.linter import check_text
from halfstep.check.repair.fix import fix_data
from halfstep.rules import registry
from lint_kinds import executed, gaps_beside, programs

RULES = registry.select()
CASES = programs.named(programs.kinds_of("repairs"))
WHOLE = [name for name in CASES if name.startswith("repaired whole")]
START, NUM_BATCHES = 2.0**10, 3
ONE_FILE = [n for n, text in programs.CASES.items() if not text.startswith("# file")]
WRONG = [n for n in ONE_FILE if "# <- HS" in programs.CASES[n]]


def fixed(text: str) -> str:
    return fix_data("train.py", text.encode(), RULES, unsafe=True).new.decode()


def train(text: str, path: Path, amp: bool) -> dict[str, Any]:
    """Run a program of the table, which goes on with the file at `path` if there is one."""
    new = f'GradScaler("cpu", init_scale={START}, growth_interval=1'
    text = text.replace('GradScaler("cuda"', new)
    names: dict[str, Any] = {"__name__": "train"}
    exec(compile(text, "train.py", "exec"), names)
    torch.manual_seed(5)
    model = executed.Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    args = argparse.Namespace(amp=amp, path=str(path))
    names["main"](args, model, optimizer, executed.batches(False)[:NUM_BATCHES])
    saved: dict[str, Any] = torch.load(path)
    return saved


@pytest.mark.parametrize("name", programs.with_gaps(CASES, gaps_beside.BROKEN))
def test_checkpoint_repair_leaves_every_run_and_every_file_working(
    name: str, tmp_path: Path
) -> None:
    old, new = CASES[name], fixed(CASES[name])
    ways = itertools.product([(old, new), (new, new), (new, old)], [True, False], [True, False])
    for i, ((first, second), was_on, is_on) in enumerate(ways):
        path, plain = tmp_path / f"{i}.pt", tmp_path / f"{i}-before.pt"
        expected = [train(old, plain, amp)["model"] for amp in (was_on, is_on)]
        found = [train(first, path, was_on)["model"], train(second, path, is_on)["model"]]
        for a, b in zip(found, expected, strict=True):
            assert all(map(torch.equal, a.values(), b.values()))


@pytest.mark.parametrize("name", CASES)
def test_checkpoint_without_its_scaler_is_found(name: str) -> None:
    assert "HS117" in {f.code for f in check_text("train.py", CASES[name], RULES)}


@pytest.mark.parametrize("name", CASES)
def test_checkpoint_repair_is_done_once(name: str) -> None:
    once = fixed(CASES[name])
    assert fixed(once) == once


@pytest.mark.parametrize("name", programs.with_gaps(WHOLE, gaps_beside.UNREPAIRED))
def test_checkpoint_that_is_repaired_whole_carries_the_scale_on(name: str, tmp_path: Path) -> None:
    new, path = fixed(CASES[name]), tmp_path / "a.pt"
    assert train(new, path, True)["scaler"]["scale"] == START * 2.0**NUM_BATCHES
    assert train(new, path, True)["scaler"]["scale"] == START * 4.0**NUM_BATCHES


@pytest.mark.parametrize("name", programs.with_gaps(WRONG, gaps_beside.DAMAGED))
def test_repair_of_any_kind_of_program_adds_no_fault(name: str, tmp_path: Path) -> None:
    text = programs.CASES[name]
    new = fixed(text)
    if new != text:
        before, after = (executed.faults(t, tmp_path) for t in (text, new))
        assert set(after) <= set(before)


def test_correct_programs_are_not_repaired() -> None:
    correct = set(ONE_FILE) - set(WRONG)
    assert [name for name in correct if fixed(programs.CASES[name]) != programs.CASES[name]] == []
