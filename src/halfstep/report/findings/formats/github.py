"""Annotations of GitHub Actions, which stand beside the lines of a pull request.

```yaml
- run: pip install halfstep
- run: halfstep check --format github .
```
"""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.records.source_finding import SourceFinding
from halfstep.report.findings.checked import Checked

_COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}


def render(checked: Checked) -> Iterator[str]:
    """A workflow command per finding, and what `--statistics` asks for."""
    yield from map(annotation, checked.found)
    if checked.statistics:
        from halfstep.report.findings.excerpts import statistics_lines

        yield from statistics_lines(source.finding for source in checked.found)


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
