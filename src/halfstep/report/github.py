"""Findings as annotations of GitHub Actions."""

from __future__ import annotations

from halfstep.records.source_finding import SourceFinding

_COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}


def annotation(source: SourceFinding) -> str:
    """One workflow command."""
    finding = source.finding
    fields: dict[str, object] = {"file": finding.path.replace("\\", "/")}
    where = ""
    if finding.cell:  # its lines are not those of the file
        where = f"Cell {finding.cell}, line {finding.line}: "
    else:
        fields |= {"line": finding.line, "endLine": source.end_line, "col": finding.column}
        if source.end_line == finding.line:
            fields["endColumn"] = source.end_column
    fields["title"] = f"{finding.code} {finding.name}"
    text = f"{where}{finding.message} Remedy: {finding.remedy}"
    shown = ",".join(f"{key}={_property(str(value))}" for key, value in fields.items())
    return f"::{_COMMANDS[finding.severity]} {shown}::{_data(text)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
