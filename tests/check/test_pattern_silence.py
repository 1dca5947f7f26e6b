"""The pattern rules say nothing about correct programs, of which many look like a mistake."""

from __future__ import annotations

import ast

import pytest
import silent_casts
import silent_checkpoints
import silent_numbers
import silent_scaling
import silent_steps
import silent_upkeep

from halfstep.check.linter import check_text
from halfstep.rules import registry
from halfstep.rules.rule import SourceRule

RULES = [r for r in registry.select(["HS130", "HS2", "HS3"]) if issubclass(r, SourceRule)]
MODULES = (
    silent_casts,
    silent_checkpoints,
    silent_numbers,
    silent_scaling,
    silent_steps,
    silent_upkeep,
)
SILENT = {code: programs for module in MODULES for code, programs in module.SILENT.items()}
CASES = [(code, name) for code, programs in sorted(SILENT.items()) for name in programs]


def test_every_pattern_rule_has_at_least_six_look_alikes() -> None:
    codes = [rule.code for rule in RULES if rule.code <= "HS303"]
    assert {code: len(SILENT[code]) >= 6 for code in codes} == dict.fromkeys(codes, True)


@pytest.mark.parametrize(("code", "name"), CASES, ids=lambda text: text)
def test_correct_look_alike_gives_no_finding(code: str, name: str) -> None:
    text = SILENT[code][name]
    ast.parse(text)
    assert [str(finding) for finding in check_text("train.py", text, RULES)] == []
