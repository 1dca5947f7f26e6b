"""Lengths of loops agree with the rounds that are read: nothing on correct code, all on wrong."""

from __future__ import annotations

import pytest
from silent_loops import LOOPS
from silent_windows import WINDOWS

from halfstep.check.linter import check_text
from halfstep.rules import registry

RULES = registry.select(["HS1"])
CLIP = "nn.utils.clip_grad_norm_(model.parameters(), 1.0)"


@pytest.mark.parametrize("name", WINDOWS)
def test_program_that_asks_for_lengths_gives_no_finding(name: str) -> None:
    program = WINDOWS[name].replace("CLIP", "pass")
    assert [str(finding) for finding in check_text("train.py", program, RULES)] == []


@pytest.mark.parametrize("name", WINDOWS)
def test_mistake_in_each_of_its_windows_is_found(name: str) -> None:
    program = WINDOWS[name].replace("CLIP", CLIP)
    lines = [i for i, line in enumerate(program.splitlines(), 1) if CLIP in line]
    found = check_text("train.py", program, RULES)
    assert [f.line for f in found if f.code == "HS101"] == lines


@pytest.mark.parametrize("name", LOOPS)
def test_loop_that_is_not_plain_gives_no_finding(name: str) -> None:
    assert [str(finding) for finding in check_text("train.py", LOOPS[name], RULES)] == []
