"""HS101: clips that a program writes itself, and nothing that is none."""

from __future__ import annotations

import pytest
from hand_clips import CLIPS, END, NO_CLIPS, program

from halfstep.check.linter import check_text
from halfstep.check.repair.fix import fix_data
from halfstep.rules import registry

RULES = registry.select(["HS1"])
UNSCALE = "    scaler.unscale_(optimizer)\n"


@pytest.mark.parametrize("name", CLIPS)
def test_clip_by_hand_of_scaled_gradients_is_found_at_its_line(name: str) -> None:
    text = program(CLIPS[name])
    found = check_text("train.py", text, RULES)
    line = text.count("\n") - END.count("\n")
    assert [(f.code, f.line) for f in found] == [("HS101", line)]


@pytest.mark.parametrize("name", CLIPS)
def test_clip_by_hand_of_unscaled_gradients_gives_no_finding(name: str) -> None:
    assert check_text("train.py", program(CLIPS[name], UNSCALE), RULES) == []


@pytest.mark.parametrize("name", NO_CLIPS)
def test_factor_that_is_no_clip_gives_no_finding(name: str) -> None:
    assert check_text("train.py", program(NO_CLIPS[name]), RULES) == []


@pytest.mark.parametrize("name", CLIPS)
def test_clip_by_a_norm_measured_before_is_not_repaired(name: str) -> None:
    """`unscale_` in front of it would leave the norm as it is."""
    data = program(CLIPS[name]).encode()
    assert fix_data("train.py", data, RULES, unsafe=True).new == data
