"""Zero findings on correct code."""

from __future__ import annotations

import pytest
from correct_programs import CORRECT
from correct_shapes import SHAPES
from correct_trainings import TRAININGS
from correct_trainings_more import MORE_TRAININGS

from halfstep.check.linter import check_text
from halfstep.rules import registry

RULES = registry.select(["HS1"])  # some of them are old enough for HS303


PROGRAMS = {**CORRECT, **SHAPES, **TRAININGS, **MORE_TRAININGS}


@pytest.mark.parametrize("name", PROGRAMS)
def test_correct_program_gives_no_finding(name: str) -> None:
    found = [f for f in check_text("train.py", PROGRAMS[name], RULES) if f.severity != "note"]
    assert [str(finding) for finding in found] == []
