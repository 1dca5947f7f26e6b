"""GitLab's code quality report: its structure, and fingerprints that outlive edits elsewhere."""

from __future__ import annotations

import json
from typing import Any

import pytest

from halfstep.check.linter import check_source
from halfstep.records.finding import Finding
from halfstep.records.source_finding import SourceFinding
from halfstep.report.findings.checked import Checked
from halfstep.report.findings.formats.gitlab import render
from halfstep.rules import registry

# Of the documentation of GitLab: "Code Quality report format".
SEVERITIES = {"info", "minor", "major", "critical", "blocker"}
RULES = registry.select()
OLD = "import torch\nscaler = torch.cuda.amp.GradScaler()\n"


def issues(found: list[SourceFinding]) -> list[dict[str, Any]]:
    checked = Checked(found, 1, [], False, checklist=list, rules=list, version="1.2.3")
    made: list[dict[str, Any]] = json.loads("\n".join(render(checked)))
    return made


def issues_of(text: str, path: str = "train.py") -> list[dict[str, Any]]:
    return issues(check_source(path, text.encode(), RULES).found)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_issue_of_every_rule_has_what_gitlab_asks_for(rule: type[registry.Rule]) -> None:
    for issue in issues_of(rule.bad):
        assert set(issue) == {"description", "check_name", "fingerprint", "severity", "location"}
        assert issue["severity"] in SEVERITIES
        assert issue["location"]["path"] == "train.py"
        assert 1 <= issue["location"]["lines"]["begin"] <= issue["location"]["lines"]["end"]


def test_no_finding_is_an_empty_list() -> None:
    assert issues([]) == []


def test_fingerprint_stays_when_lines_are_put_in_above() -> None:
    (before,), (after,) = issues_of(OLD), issues_of("# new\n" + OLD)
    assert before["fingerprint"] == after["fingerprint"]
    assert before["location"] != after["location"]


def test_fingerprints_of_equal_lines_differ() -> None:
    line = OLD.splitlines()[1] + "\n"
    fingerprints = {issue["fingerprint"] for issue in issues_of(OLD + line)}
    assert len(fingerprints) == 2


def test_fingerprints_of_files_differ() -> None:
    assert issues_of(OLD)[0]["fingerprint"] != issues_of(OLD, "other.py")[0]["fingerprint"]


@pytest.mark.parametrize("path", ["./src/train.py", ".\\src\\train.py"])
def test_path_is_that_of_the_repository(path: str) -> None:
    (issue,) = issues([SourceFinding(Finding("HS110", "n", "note", path, 3, 1, "a.", "b."), 3, 2)])
    assert issue["location"]["path"] == "src/train.py"


def test_finding_of_a_cell_says_where_and_points_at_the_file() -> None:
    finding = Finding("HS303", "old", "note", "a.ipynb", 40, 1, "old.", "new.", cell=3)
    (issue,) = issues([SourceFinding(finding, 40, 5)])
    assert issue["description"] == "Cell 3, line 40: old. Remedy: new."
    assert issue["location"]["lines"] == {"begin": 1, "end": 1}
