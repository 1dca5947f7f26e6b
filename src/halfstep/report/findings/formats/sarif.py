"""SARIF 2.1.0, which code scanning services and editors read.

With the help of each rule, the related lines, the repairs, and the files that were not checked.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import quote

from halfstep.records.finding import Related
from halfstep.records.rule_text import RuleText
from halfstep.records.source_finding import SourceFinding
from halfstep.report.findings.checked import Checked

_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)


def render(checked: Checked) -> Iterator[str]:
    """The log, indented."""
    log = sarif(checked.found, checked.rules(), checked.version, checked.problems)
    yield json.dumps(log, indent=2)


def sarif(
    found: Iterable[SourceFinding],
    rules: Sequence[RuleText],
    version: str,
    problems: Iterable[tuple[str, str]] = (),
) -> dict[str, Any]:
    """The log of one run, to be written as JSON.

    Args:
        found: The findings.
        rules: All rules that were asked.
        version: Of halfstep.
        problems: Path and reason of each file that could not be checked.
    """
    index = {rule.code: number for number, rule in enumerate(rules)}
    notes = [_notification(path, reason) for path, reason in problems]
    invocation: dict[str, Any] = {"executionSuccessful": True}
    if notes:
        invocation["toolExecutionNotifications"] = notes
    driver = {
        "name": "halfstep",
        "version": version,
        "semanticVersion": version,
        "rules": [_rule(rule) for rule in rules],
    }
    run = {
        "tool": {"driver": driver},
        "invocations": [invocation],
        "columnKind": "unicodeCodePoints",
        "results": [_result(source, index) for source in found],
    }
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(rule: RuleText) -> dict[str, Any]:
    return {
        "id": rule.code,
        "name": "".join(part.capitalize() for part in rule.name.split("-")),
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": rule.text},
        "help": {
            "text": f"{rule.text}\n\nRemedy: {_plain(rule.remedy)}",
            "markdown": _markdown(rule),
        },
        "defaultConfiguration": {"level": rule.severity},
    }


def _plain(text: str) -> str:
    """A message with the names of its fields in it; braces are placeholders in SARIF."""
    return re.sub(r"\{(\w+)\}", r"\1", text)


def _markdown(rule: RuleText) -> str:
    bad, good = rule.bad.rstrip(), rule.good.rstrip()
    return (
        f"{rule.text}\n\n**Remedy:** {_plain(rule.remedy)}\n\n"
        f"Wrong:\n\n```python\n{bad}\n```\n\nRight:\n\n```python\n{good}\n```"
    )


def _result(source: SourceFinding, index: dict[str, int]) -> dict[str, Any]:
    finding = source.finding
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "level": finding.severity,
        "message": {"text": f"{finding.message} {finding.remedy}"},
        "locations": [_location(source)],
    }
    if finding.code in index:
        result["ruleIndex"] = index[finding.code]
    if finding.related:
        result["relatedLocations"] = [
            {"id": number, **_related(related)} for number, related in enumerate(finding.related, 1)
        ]
    if source.repair and finding.cell is None:
        result["fixes"] = [_fix(source)]
    return result


def _location(source: SourceFinding) -> dict[str, Any]:
    finding = source.finding
    physical: dict[str, Any] = {"artifactLocation": _artifact(finding.path)}
    if finding.cell is not None:
        return {"physicalLocation": physical, **_in_cell(finding.cell, finding.line)}
    physical["region"] = {
        "startLine": finding.line,
        "startColumn": finding.column,
        "endLine": source.end_line,
        "endColumn": source.end_column,
    }
    return {"physicalLocation": physical}


def _related(related: Related) -> dict[str, Any]:
    physical: dict[str, Any] = {"artifactLocation": _artifact(related.path)}
    text = {"message": {"text": related.message}}
    if related.cell is not None:
        return {**text, "physicalLocation": physical, **_in_cell(related.cell, related.line)}
    physical["region"] = {"startLine": related.line}
    return {**text, "physicalLocation": physical}


def _in_cell(cell: int, line: int) -> dict[str, Any]:
    """The lines of a notebook's file are those of its JSON and mean nothing to a reader."""
    name = f"cell {cell}, line {line}"
    return {"logicalLocations": [{"name": name, "fullyQualifiedName": name}]}


def _fix(source: SourceFinding) -> dict[str, Any]:
    replacements = [
        {
            "deletedRegion": {
                "startLine": edit.line,
                "startColumn": edit.column,
                "endLine": edit.end_line,
                "endColumn": edit.end_column,
            },
            "insertedContent": {"text": edit.text},
        }
        for edit in source.repair
    ]
    change = {"artifactLocation": _artifact(source.finding.path), "replacements": replacements}
    return {"description": {"text": source.finding.remedy}, "artifactChanges": [change]}


def _notification(path: str, reason: str) -> dict[str, Any]:
    return {
        "level": "warning",
        "message": {"text": f"not checked: {reason}"},
        "locations": [{"physicalLocation": {"artifactLocation": _artifact(path)}}],
    }


def _artifact(path: str) -> dict[str, Any]:
    """Relative to the root of the sources, or a whole address."""
    uri = quote(path.replace(os.sep, "/"))
    return {"uri": f"file://{uri}"} if os.path.isabs(path) else {"uri": uri}
