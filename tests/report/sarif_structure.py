"""What SARIF 2.1.0 allows in the objects that halfstep writes.

Read off the standard (OASIS, SARIF version 2.1.0, section 3): for each object, which properties it
must have, and all that it may have of those that a linter could want.
"""

from __future__ import annotations

from typing import Any

# name: (required, optional); a value is a type, a set of words, an object's name or a list of them
OBJECTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "log": ({"version": {"2.1.0"}, "runs": ["run"]}, {"$schema": str}),
    "run": (
        {"tool": "tool"},
        {
            "results": ["result"],
            "invocations": ["invocation"],
            "columnKind": {"utf16CodeUnits", "unicodeCodePoints"},
        },
    ),
    "tool": ({"driver": "component"}, {}),
    "component": (
        {"name": str},
        {"version": str, "semanticVersion": str, "informationUri": str, "rules": ["descriptor"]},
    ),
    "descriptor": (
        {"id": str},
        {
            "name": str,
            "shortDescription": "multiformat",
            "fullDescription": "multiformat",
            "help": "multiformat",
            "helpUri": str,
            "defaultConfiguration": "configuration",
        },
    ),
    "multiformat": ({"text": str}, {"markdown": str}),
    "configuration": ({}, {"level": {"none", "note", "warning", "error"}}),
    "invocation": (
        {"executionSuccessful": bool},
        {"toolExecutionNotifications": ["notification"]},
    ),
    "notification": (
        {"message": "message"},
        {"level": {"none", "note", "warning", "error"}, "locations": ["location"]},
    ),
    "message": ({"text": str}, {}),
    "result": (
        {"message": "message"},
        {
            "ruleId": str,
            "ruleIndex": int,
            "level": {"none", "note", "warning", "error"},
            "locations": ["location"],
            "relatedLocations": ["location"],
            "fixes": ["fix"],
        },
    ),
    "location": (
        {},
        {
            "id": int,
            "physicalLocation": "physical",
            "logicalLocations": ["logical"],
            "message": "message",
        },
    ),
    "physical": ({"artifactLocation": "artifactLocation"}, {"region": "region"}),
    "logical": ({}, {"name": str, "fullyQualifiedName": str}),
    "artifactLocation": ({}, {"uri": str, "uriBaseId": str}),
    "region": (
        {},
        {"startLine": int, "startColumn": int, "endLine": int, "endColumn": int},
    ),
    "fix": ({"artifactChanges": ["change"]}, {"description": "message"}),
    "change": (
        {"artifactLocation": "artifactLocation", "replacements": ["replacement"]},
        {},
    ),
    "replacement": ({"deletedRegion": "region"}, {"insertedContent": "content"}),
    "content": ({}, {"text": str}),
}


def violations(value: Any, kind: Any = "log", where: str = "$") -> list[str]:
    """Where a log differs from the structure."""
    if isinstance(kind, list):
        if not isinstance(value, list):
            return [f"{where}: no list"]
        found = [violations(item, kind[0], f"{where}[{n}]") for n, item in enumerate(value)]
        return [text for part in found for text in part]
    if isinstance(kind, set):
        return [] if value in kind else [f"{where}: {value!r} is none of {sorted(kind)}"]
    if isinstance(kind, type):
        right = type(value) is kind and (kind is not int or value >= 0)
        return [] if right else [f"{where}: {value!r} is no {kind.__name__}"]
    required, optional = OBJECTS[kind]
    known = {**required, **optional}
    found = [f"{where}.{name}: missing" for name in required if name not in value]
    for name, inner in value.items():
        if name not in known:
            found.append(f"{where}.{name}: not in the standard")
        else:
            found += violations(inner, known[name], f"{where}.{name}")
    return found
