"""Every kind of program that the field got wrong: what is said, and that running it agrees."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from halfstep.check.linter import check_paths
from halfstep.rules import registry
from lint_kinds import (
    asked_twice,
    averages,
    choices,
    executed,
    gaps,
    given_optimizers,
    own_scalers,
    skips,
    stages,
)

FILES = (asked_twice, choices, given_optimizers, skips, stages, own_scalers, averages)
CASES = {
    f"{kind} / {member}": text
    for file in FILES
    for kind, members in file.KINDS.items()
    for member, text in members.items()
}
MARK = re.compile(r"# <- (HS\d+)$")
# What these say needs a skip, a resume or a person that reads, not another scale, to be seen.
UNSEEN = frozenset(
    ["HS106", "HS109", "HS111", "HS112", "HS115", "HS117", "HS118", "HS127", "HS130", "HS210"]
)
RULES = registry.select()


def said(folder: Path, text: str, named: tuple[str, ...] = ()) -> list[tuple[str, int, str]]:
    for name, body in executed.files_of(text):
        (folder / name).write_text(body)
    report = check_paths([str(folder / name) for name in named] or [str(folder)], RULES)
    return sorted(
        (Path(f.path).name, f.line, f.code)
        for f in report.findings
        if f.severity != "note" or f.code == "HS109"
    )


def marked(text: str) -> list[tuple[str, int, str]]:
    return sorted(
        (name, number, mark.group(1))
        for name, body in executed.files_of(text)
        for number, line in enumerate(body.splitlines(), 1)
        if (mark := MARK.search(line))
    )


def cases() -> list[Any]:
    return list(_cases())


def _cases() -> Iterator[Any]:
    for name in CASES:
        reason = gaps.GAPS.get(name)
        marks = [pytest.mark.xfail(strict=True, reason=reason)] if reason else []
        yield pytest.param(name, marks=marks)


def codes_of(text: str) -> set[str]:
    return {code for _, _, code in marked(text)}


RIGHT = [name for name, text in CASES.items() if not codes_of(text)]
WRONG = [name for name, text in CASES.items() if codes_of(text) - UNSEEN]


@pytest.mark.parametrize("name", cases())
def test_program_gets_exactly_the_findings_that_are_true(name: str, tmp_path: Path) -> None:
    assert said(tmp_path, CASES[name]) == marked(CASES[name])


@pytest.mark.parametrize("name", RIGHT)
def test_correct_program_trains_as_it_would_without_amp(name: str, tmp_path: Path) -> None:
    assert executed.faults(CASES[name], tmp_path) == []


@pytest.mark.parametrize("name", WRONG)
def test_wrong_program_shows_its_fault_when_it_runs(name: str, tmp_path: Path) -> None:
    assert executed.faults(CASES[name], tmp_path) != []


def test_gaps_are_cases() -> None:
    assert [name for name in gaps.GAPS if name not in CASES] == []
