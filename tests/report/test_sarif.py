"""SARIF: the structure of the standard, and that nothing of a finding is lost on the way."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote

import pytest
from sarif_structure import violations

from halfstep.check.linter import check_source
from halfstep.records.source_finding import SourceFinding
from halfstep.report.findings.formats.sarif import sarif
from halfstep.rules import registry
from halfstep.rules.text import rule_text

RULES = registry.select()
TEXTS = [rule_text(rule) for rule in RULES]
BAD = registry.load("HS101").bad


def found_in(path: str, text: str) -> list[SourceFinding]:
    return check_source(path, text.encode(), RULES).found


def log_of(found: list[SourceFinding], **options: Any) -> dict[str, Any]:
    log: dict[str, Any] = json.loads(json.dumps(sarif(found, TEXTS, "1.2.3", **options)))
    return log


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_log_of_every_rule_has_the_structure_of_the_standard(rule: Any) -> None:
    log = log_of(found_in("a b/ü.py", rule.bad), problems=[("x.py", "no text")])
    assert violations(log) == []


def test_structure_is_told_from_others() -> None:
    log = log_of(found_in("a.py", BAD))
    log["runs"][0]["results"][0]["level"] = "fatal"
    log["runs"][0]["tool"]["driver"]["colour"] = "red"
    del log["runs"][0]["results"][0]["message"]
    assert [text.split(": ")[1] for text in violations(log)] == [
        "not in the standard",
        "missing",
        "'fatal' is none of ['error', 'none', 'note', 'warning']",
    ]


def test_rules_have_help_and_level_and_results_point_at_them() -> None:
    log = log_of(found_in("a.py", BAD))
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == [text.code for text in TEXTS]
    for rule, text in zip(rules, TEXTS, strict=True):
        assert rule["defaultConfiguration"]["level"] == text.severity
        assert "Remedy:" in rule["help"]["text"]
        assert text.good.rstrip() in rule["help"]["markdown"]
        assert "{" not in rule["help"]["text"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]


def test_finding_can_be_read_back() -> None:
    found = [source for rule in RULES for source in found_in("a b/ü.py", rule.bad)]
    for source, result in zip(found, log_of(found)["runs"][0]["results"], strict=True):
        finding = source.finding
        physical = result["locations"][0]["physicalLocation"]
        region = physical["region"]
        assert (result["ruleId"], result["level"]) == (finding.code, finding.severity)
        assert result["message"]["text"] == f"{finding.message} {finding.remedy}"
        assert unquote(physical["artifactLocation"]["uri"]) == finding.path
        assert (region["startLine"], region["startColumn"]) == (finding.line, finding.column)
        assert [
            (r["physicalLocation"]["region"]["startLine"], r["message"]["text"])
            for r in result.get("relatedLocations", [])
        ] == [(r.line, r.message) for r in finding.related]


def test_fix_replaces_the_text_it_names() -> None:
    text = "import torch\nx = 'ä'; y = torch.cuda.amp.autocast()\n"
    (result,) = log_of(found_in("a.py", text))["runs"][0]["results"]
    line = text.splitlines()[1]
    (change,) = result["fixes"][0]["artifactChanges"]
    for edit in reversed(change["replacements"]):
        region = edit["deletedRegion"]
        assert region["startLine"] == region["endLine"] == 2
        start, end = region["startColumn"] - 1, region["endColumn"] - 1
        line = line[:start] + edit["insertedContent"]["text"] + line[end:]
    assert line == "x = 'ä'; y = torch.amp.autocast(\"cuda\")"


def test_absolute_path_is_a_whole_address() -> None:
    (result,) = log_of(found_in("/tmp/a b.py", BAD))["runs"][0]["results"]
    location = result["locations"][0]["physicalLocation"]["artifactLocation"]
    assert location == {"uri": "file:///tmp/a%20b.py"}


def test_finding_in_a_notebook_names_the_cell() -> None:
    cells = [{"cell_type": "code", "source": BAD}]
    (result,) = log_of(found_in("a.ipynb", json.dumps({"cells": cells})))["runs"][0]["results"]
    (location,) = result["locations"]
    assert location["logicalLocations"][0]["name"] == "cell 1, line 17"
    assert "region" not in location["physicalLocation"]
