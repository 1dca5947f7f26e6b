"""What a program hands on as a function: followed where it can be, else passed over."""

from __future__ import annotations

import pytest
from silent_callables import PROGRAMS, WRONG

from halfstep.check.linter import check_text
from halfstep.rules import registry

RULES = registry.select(["HS1"])


@pytest.mark.parametrize("name", PROGRAMS)
def test_step_through_a_callable_gives_no_finding(name: str) -> None:
    found = check_text("train.py", PROGRAMS[name], RULES)
    assert [str(f) for f in found if f.severity != "note"] == []


@pytest.mark.parametrize("name", WRONG)
def test_mistake_through_an_alias_is_found(name: str) -> None:
    lines = WRONG[name].splitlines()
    expected = [("HS101", n) for n, line in enumerate(lines, 1) if line.endswith("# <- HS101")]
    found = check_text("train.py", WRONG[name], RULES)
    assert [(f.code, f.line) for f in found if f.severity != "note"] == expected
