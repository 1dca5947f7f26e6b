"""Contract over all rules: what they say of themselves, and their examples as they run."""

from __future__ import annotations

import re
import warnings

import pytest
from recorder import record

from halfstep.check.linter import check_text
from halfstep.records import BadValueError
from halfstep.rules import registry
from halfstep.rules.judge import judge
from halfstep.rules.rule import OrderRule, Rule

RULES = registry.select()
LINTED = [rule for rule in RULES if "L" in rule.readers]
# what the rules over text alone say of a run is shown in test_pattern_effects.py
LIVE = [rule for rule in RULES if "G" in rule.readers and issubclass(rule, OrderRule)]


def expected_lines(script: str) -> set[tuple[str, int]]:
    lines = enumerate(script.splitlines(), 1)
    marks = ((re.search(r"# <- (HS\d+)$", line), number) for number, line in lines)
    return {(mark.group(1), number) for mark, number in marks if mark}


def found_live(script: str) -> tuple[set[tuple[str, int]], Exception | None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about some of the mistakes
        events, error = record(script)
    return {(f.code, f.line) for f in judge(events, RULES)}, error


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_rule_says_all_that_docs_and_tests_need(rule: type[Rule]) -> None:
    assert re.fullmatch(r"HS[123]\d\d", rule.code)
    assert re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)+", rule.name)
    assert rule.readers in ("LG", "L", "G")
    assert rule.severity in ("error", "warning", "note")
    for word in ("What:", "Why:", "Source:"):
        assert word in (rule.__doc__ or "")
    assert expected_lines(rule.bad)
    assert {code for code, _ in expected_lines(rule.bad)} == {rule.code}
    assert expected_lines(rule.good) == set()


@pytest.mark.parametrize("rule", LIVE, ids=lambda rule: rule.code)
def test_bad_example_as_it_runs_gives_exactly_its_findings(rule: type[Rule]) -> None:
    found, error = found_live(rule.bad)
    assert found == expected_lines(rule.bad)
    assert error is None or isinstance(error, (RuntimeError, AssertionError))


@pytest.mark.parametrize("rule", LIVE, ids=lambda rule: rule.code)
def test_good_example_as_it_runs_gives_nothing(rule: type[Rule]) -> None:
    assert found_live(rule.good) == (set(), None)


@pytest.mark.parametrize("rule", LINTED, ids=lambda rule: rule.code)
@pytest.mark.parametrize("example", ["bad", "good"])
def test_example_as_source_gives_exactly_its_findings(rule: type[Rule], example: str) -> None:
    script = getattr(rule, example)
    found = check_text("example.py", script, RULES)
    assert {(f.code, f.line) for f in found} == expected_lines(script)


def test_select_of_a_beginning_takes_all_that_begin_with_it() -> None:
    assert [r.code for r in registry.select(["HS10"], ["HS102"])][:2] == ["HS101", "HS103"]


def test_select_of_an_unknown_code_is_refused() -> None:
    with pytest.raises(BadValueError, match="no rule begins with 'HS9'"):
        registry.select(["HS9"])
    with pytest.raises(BadValueError, match="there is no rule 'HS999'"):
        registry.load("HS999")


def test_every_order_rule_listens() -> None:
    assert all(rule.listens for rule in RULES if issubclass(rule, OrderRule))
