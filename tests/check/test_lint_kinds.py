"""Every kind of program that the field got wrong: what is said, and that running it agrees."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from lint_kinds import (
    asked_twice,
    averages,
    choices,
    executed,
    gaps,
    given_optimizers,
    own_scalers,
    scaled_gradients,
    skips,
    stages,
    windows,
    regions,
    checkpoints,
)

from halfstep.check.linter import check_paths
from halfstep.rules import registry

FILES = (
    windows,
    regions,
    checkpoints,
    scaled_gradients,
    asked_twice,
    choices,
    given_optimizers,
    skips,
    stages,
    own_scalers,
    averages,
)
CASES = {
    f"{kind} / {member}": text
    for file in FILES
    for kind, members in file.KINDS.items()
    for member, text in members.items()
}
MARK = re.compile(r"# <- (HS\d+)$")
# What these say needs a skip, a resume or a person that reads, not another scale, to be seen.
UNSEEN = frozenset("HS106 HS109 HS111 HS112 HS117 HS118 HS127 HS130 HS132 HS210 HS214".split())
# Of these, what trains as it should as long as no step is skipped.
AT_A_SKIP = UNSEEN - {"HS112", "HS127", "HS132"}
# Wrong, and of this only an overflow would tell.
UNSHOWN = {"hook on scaled gradients / NaN to 0"}
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


def cases(of_files: str = "") -> list[Any]:
    """Names of all cases, or of those of several files; what is a gap is expected to fail."""
    names = [n for n, text in CASES.items() if not of_files or text.startswith("# file")]
    reasons = [gaps.GAPS.get(n) or gaps.GAPS.get(f"{n}, {of_files} named") for n in names]
    marks = [[pytest.mark.xfail(strict=True, reason=r)] if r else [] for r in reasons]
    return [pytest.param(n, marks=m) for n, m in zip(names, marks, strict=True)]


def codes_of(text: str) -> set[str]:
    return {code for _, _, code in marked(text)}


RIGHT = [name for name, text in CASES.items() if codes_of(text) <= AT_A_SKIP]
WRONG = [n for n, text in CASES.items() if codes_of(text) - UNSEEN and n not in UNSHOWN]


@pytest.mark.parametrize("name", cases())
def test_program_gets_exactly_the_findings_that_are_true(name: str, tmp_path: Path) -> None:
    assert said(tmp_path, CASES[name]) == marked(CASES[name])


@pytest.mark.parametrize("name", RIGHT)
def test_correct_program_trains_as_it_would_without_amp(name: str, tmp_path: Path) -> None:
    assert executed.faults(CASES[name], tmp_path) == []


@pytest.mark.parametrize("name", WRONG)
def test_wrong_program_shows_its_fault_when_it_runs(name: str, tmp_path: Path) -> None:
    clips = bool(codes_of(CASES[name]) & {"HS103", "HS131"})
    assert executed.faults(CASES[name], tmp_path, clips) != []


@pytest.mark.parametrize("name", cases("main"))
def test_main_file_that_is_named_alone_leads_to_the_others(name: str, tmp_path: Path) -> None:
    assert said(tmp_path, CASES[name], ("main.py",)) == marked(CASES[name])


@pytest.mark.parametrize("name", cases("all"))
def test_files_that_are_named_one_by_one_are_one_program(name: str, tmp_path: Path) -> None:
    names = tuple(path for path, _ in executed.files_of(CASES[name]))
    assert said(tmp_path, CASES[name], names) == marked(CASES[name])


def test_gaps_are_cases() -> None:
    names = [re.sub(", (main|all) named$", "", name) for name in gaps.GAPS]
    assert [name for name in names if name not in CASES] == []
