"""Generated programs: what the rules say against what the program does.

The truth comes from running each program on stock torch beside the same program with its loss
scaling erased (`erased`, plain Python). The suite reads every fourth mutant, and all of them
with ``HALFSTEP_ALL_MUTANTS`` in the environment.
"""

from __future__ import annotations

import os

import pytest
from programs import FORMS, Program, correct_loops
from recall import INERT, READINGS, Table, all_mutants, findings, table
from trial import CLOCK, ENVIRONMENTS, RAISES, RIGHT, VALUE, run, verdict

from halfstep.rules import registry

RULES = registry.select()
STRIDE = 1 if os.environ.get("HALFSTEP_ALL_MUTANTS") else 4
LOOPS = correct_loops()


@pytest.fixture(scope="module")
def judged() -> list[tuple[Program, str]]:
    return [(mutant, verdict(mutant)) for mutant in all_mutants()[::STRIDE]]


@pytest.fixture(scope="module")
def recall(judged: list[tuple[Program, str]]) -> Table:
    return table(judged, RULES)


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.name)
def test_correct_loop_agrees_with_its_erased_reference(loop: Program) -> None:
    assert verdict(loop) == RIGHT


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.name)
@pytest.mark.parametrize("form", FORMS)
def test_forms_of_a_program_do_the_same(loop: Program, form: str) -> None:
    environment = ENVIRONMENTS[3]
    there, here = run(loop, environment, FORMS[form](loop)), run(loop, environment)
    assert there.error is None
    assert there.snapshots == here.snapshots


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.name)
@pytest.mark.parametrize("reading", READINGS)
def test_correct_loop_gives_no_finding(loop: Program, reading: str) -> None:
    assert findings(loop, reading, RULES) == []


def test_wrong_programs_are_found_in_every_stratum_and_reading(recall: Table) -> None:
    print(recall)
    shares = recall.shares(RAISES, VALUE)
    assert len(shares) >= 5 * len(READINGS)
    assert {key: share for key, share in shares.items() if share < 0.99} == {}


def test_schedules_that_ignore_skips_are_found(recall: Table) -> None:
    inserted = {k: s for k, s in recall.shares(CLOCK).items() if k[1] == "insert"}
    assert inserted
    assert min(inserted.values()) >= 0.99


def test_right_programs_give_no_error_and_no_warning(recall: Table) -> None:
    assert set(recall.shares(RIGHT).values()) == {1.0}


@pytest.mark.parametrize("code", ["HS101", "HS104", "HS107"])
def test_table_without_a_rule_falls_below_the_bar(
    judged: list[tuple[Program, str]], code: str
) -> None:
    wrong = [pair for pair in judged if pair[1] in (RAISES, VALUE)]
    lame = table(wrong[::3], [rule for rule in RULES if rule.code != code])
    assert min(lame.shares(RAISES, VALUE).values()) < 0.99


def test_inert_codes_are_rules() -> None:
    assert {rule.code for rule in RULES} > INERT
