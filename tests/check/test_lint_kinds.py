"""Every kind of program that the field got wrong: what is said, and that running it agrees."""

from __future__ import annotations

import ast
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from halfstep.check.linter import check_paths
from halfstep.rules import registry
from lint_kinds import executed, gaps, programs

CASES = programs.CASES
GAPS = gaps.GAPS
SCRIPTS = re.compile("^two stages|notebook|script")
MARK = re.compile(r"# <- (HS\d+)$")
# What these say needs a skip, a resume or a person that reads, not another scale, to be seen.
UNSEEN = {
    *("HS106", "HS109", "HS110", "HS111", "HS112", "HS117", "HS118", "HS130"),
    *("HS210", "HS214", "HS216", "HS303"),
}
# Of these, what trains as it should as long as no step is skipped.
AT_A_SKIP = UNSEEN - {"HS112"}
# Kinds whose fault is the speed of a schedule or the size of a loss, which no run here shows.
UNSHOWN_KINDS = ("engine and a step of its schedule", "engine and a divided loss")
# Wrong in a way that no run here shows.
UNSHOWN = {
    "cleared in every micro-batch / by hand",
    "hook on scaled gradients / NaN to 0",
    "engine and a clip / behind train_step",  # it does nothing at all
    "engine and a step of its optimizer / behind train_step",
    "engine and a step of its optimizer / behind the engine's",
}
# Kinds about which there is nothing to say, or one thing.
ONE_SIDED = {"engine and what may stand beside it", "deprecated names"}
RULES = registry.select()


def said(folder: Path, text: str, named: tuple[str, ...] = ()) -> list[tuple[str, int, str]]:
    for name, body in executed.files_of(text):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(body)
    report = check_paths([str(folder / name) for name in named] or [str(folder)], RULES)
    return sorted(
        (Path(f.path).relative_to(folder).as_posix(), f.line, f.code)
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


def gap(name: str, named: str = "") -> str | None:
    """What the linter says instead of the truth; None where it is right."""
    kind, _, member = name.partition(" / ")
    known = GAPS.get(kind, {})
    return known.get(member) or known.get(f"{member}, {named} named")


def cases(named: str = "") -> list[Any]:
    """Names of all cases, or of those of several files; what is a gap is expected to fail."""
    names = [n for n, text in CASES.items() if not named or text.startswith("# file")]
    reasons = [gap(n, named) for n in names]
    marks = [[pytest.mark.xfail(strict=True, reason=f"says {r}")] if r else [] for r in reasons]
    return [pytest.param(n, marks=m) for n, m in zip(names, marks, strict=True)]


def codes_of(text: str) -> set[str]:
    return {code for _, _, code in marked(text)}


RIGHT = [name for name, text in CASES.items() if codes_of(text) <= AT_A_SKIP]
SHOWN = [n for n in CASES if n not in UNSHOWN and not n.startswith(UNSHOWN_KINDS)]
WRONG = [n for n in SHOWN if codes_of(CASES[n]) - UNSEEN]


@pytest.mark.parametrize("name", cases())
def test_program_gets_exactly_the_findings_that_are_true(name: str, tmp_path: Path) -> None:
    assert said(tmp_path, CASES[name]) == marked(CASES[name])


@pytest.mark.parametrize("name", RIGHT)
def test_correct_program_trains_as_it_would_without_amp(name: str, tmp_path: Path) -> None:
    assert executed.faults(CASES[name], tmp_path) == []


@pytest.mark.parametrize("name", WRONG)
def test_wrong_program_shows_its_fault_when_it_runs(name: str, tmp_path: Path) -> None:
    text, codes = CASES[name], codes_of(CASES[name])
    if codes & {"HS103", "HS131"}:
        assert executed.clip_is_idle(text, tmp_path) or executed.faults(text, tmp_path) != []
    elif "HS132" in codes:
        assert executed.clears_too_early(text, tmp_path)
    else:
        assert executed.faults(text, tmp_path) != []


@pytest.mark.parametrize("name", cases("main"))
def test_main_file_that_is_named_alone_leads_to_the_others(name: str, tmp_path: Path) -> None:
    assert said(tmp_path, CASES[name], ("main.py",)) == marked(CASES[name])


@pytest.mark.parametrize("name", cases("all"))
def test_files_that_are_named_one_by_one_are_one_program(name: str, tmp_path: Path) -> None:
    names = tuple(path for path, _ in executed.files_of(CASES[name]))
    assert said(tmp_path, CASES[name], names) == marked(CASES[name])


def as_notebook(text: str) -> str:
    """A script as a notebook, each statement of its own level in a cell of its own."""
    tree, lines = ast.parse(text), text.splitlines(keepends=True)
    starts = [0, *(node.end_lineno or 0 for node in tree.body[:-1]), len(lines)]
    sources = [lines[a:b] for a, b in itertools.pairwise(starts)]
    cells = [{"cell_type": "code", "metadata": {}, "source": source} for source in sources]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


ONE_FILE = [c for c in cases() if not CASES[c.values[0]].startswith("# file")]


@pytest.mark.parametrize("name", [c for c in ONE_FILE if SCRIPTS.search(c.values[0])])
def test_script_that_is_a_notebook_gets_the_same_findings(name: str, tmp_path: Path) -> None:
    (tmp_path / "main.ipynb").write_text(as_notebook(CASES[name]))
    found = check_paths([str(tmp_path)], RULES).findings
    codes = sorted(f.code for f in found if f.severity != "note")
    assert codes == sorted(code for _, _, code in marked(CASES[name]))


@pytest.mark.parametrize("kind", programs.KINDS)
def test_kind_has_members_enough_and_twins(kind: str) -> None:
    wrong = [bool(codes_of(text)) for text in programs.KINDS[kind].values()]
    assert len(wrong) >= 5
    assert kind in ONE_SIDED or min(wrong.count(True), wrong.count(False)) >= 2


def test_gaps_are_cases() -> None:
    names = [f"{kind} / {member}" for kind, members in GAPS.items() for member in members]
    names = [re.sub(", (main|all) named$", "", name) for name in names]
    assert [name for name in names if name not in CASES] == []
