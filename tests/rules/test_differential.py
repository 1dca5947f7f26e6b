"""Generated programs: what the rules say against what the program does.

The truth comes from running each program on stock torch beside the same program with its loss
scaling erased (`erased`, plain Python). ``HALFSTEP_MUTANT_STRIDE=10`` takes every tenth program.
"""

from __future__ import annotations

import os

import pytest
from loops import HELD_OUT, LOOPS
from mutations import all_mutants, double_mutants, edits_at
from programs import FORMS, Program, operations_by_line
from recall import READINGS, Judged, Table, findings, judge_all
from trial import ENVIRONMENTS, run
from verdicts import CLOCK, INERT, RAISES, RIGHT, SCALE_LAW, STILL, UNSEEN, VALUE, verdict

STRIDE = int(os.environ.get("HALFSTEP_MUTANT_STRIDE", "1"))
NUM_DOUBLE = 3000
GROUPS = ("one edit", "two edits", "held out")
CORRECT = (*LOOPS, *HELD_OUT)


@pytest.fixture(scope="module")
def judged() -> dict[str, list[Judged]]:
    """All programs with what is true of them and what is said, judged in one go."""
    groups = {
        "one edit": all_mutants(LOOPS)[::STRIDE],
        "two edits": double_mutants(LOOPS, NUM_DOUBLE // STRIDE),
        "held out": all_mutants(HELD_OUT)[::STRIDE],
    }
    rows = iter(judge_all([program for group in groups.values() for program in group]))
    return {name: [next(rows) for _ in group] for name, group in groups.items()}


@pytest.mark.parametrize("loop", CORRECT, ids=lambda loop: loop.name)
def test_correct_loop_agrees_with_its_erased_reference(loop: Program) -> None:
    assert verdict(loop) == RIGHT


@pytest.mark.parametrize("loop", CORRECT, ids=lambda loop: loop.name)
@pytest.mark.parametrize("form", FORMS)
def test_forms_of_a_program_do_the_same(loop: Program, form: str) -> None:
    environment = ENVIRONMENTS[3]
    there, here = run(loop, environment, FORMS[form](loop)), run(loop, environment)
    assert there.error is None
    assert there.snapshots == here.snapshots


@pytest.mark.parametrize("loop", CORRECT, ids=lambda loop: loop.name)
@pytest.mark.parametrize("reading", READINGS)
def test_correct_loop_gives_no_finding(loop: Program, reading: str) -> None:
    assert findings(loop, reading) == []


@pytest.mark.parametrize("group", GROUPS)
def test_wrong_programs_are_found_in_every_stratum_and_reading(
    judged: dict[str, list[Judged]], group: str
) -> None:
    table = Table.of(judged[group])
    print(table)
    found = table.shares(RAISES, VALUE, STILL)
    assert STRIDE > 1 or len({key[:2] for key in found}) >= 5
    assert {key: share for key, share in found.items() if share < 0.99} == {}


@pytest.mark.parametrize("truths", [(CLOCK,), (SCALE_LAW, INERT), (RIGHT,)])
@pytest.mark.parametrize("group", GROUPS)
def test_other_programs_get_what_their_verdict_demands(
    judged: dict[str, list[Judged]], group: str, truths: tuple[str, ...]
) -> None:
    rows = [row for row in judged[group] if row.truth in truths]
    missed = [(r, row.program.body) for r in READINGS for row in rows if not row.is_as_demanded(r)]
    assert rows
    assert missed == []


def test_finding_stands_where_one_edit_repairs_the_program(
    judged: dict[str, list[Judged]],
) -> None:
    wrong = [row for row in judged["one edit"] if row.truth in (RAISES, VALUE)][::5]
    reported = [row for row in wrong if row.found["flat"]]
    astray = [row for row in reported if not can_be_repaired(row)]
    assert len(astray) <= 0.01 * len(reported)


def can_be_repaired(row: Judged) -> bool:
    """Whether an edit at an operation that a finding points at makes the program right."""
    lines = operations_by_line(row.program)
    strong = [f for f in row.found["flat"] if f.severity != "note"]
    (loop,) = (loop for loop in LOOPS if loop.name == row.program.name)
    places = [lines[f.line] for f in strong if f.line in lines]
    changed = [p for place in places for p in edits_at(row.program, place, loop.body)]
    if any(program.body == loop.body for program in changed):
        return True
    return any(verdict(program) in (SCALE_LAW, INERT, RIGHT, UNSEEN) for program in changed)


@pytest.mark.parametrize("code", ["HS101", "HS104", "HS107", "HS127", "HS129"])
def test_table_without_a_rule_falls_below_the_bar(
    judged: dict[str, list[Judged]], code: str
) -> None:
    lame = Table.of(judged["one edit"], without=code)
    assert min(lame.shares(RAISES, VALUE).values()) < 0.99
