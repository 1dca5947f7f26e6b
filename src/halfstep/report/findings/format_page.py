"""The page of the docs about output formats."""

from __future__ import annotations

from collections.abc import Iterable

from halfstep.report.findings.checked import Checked
from halfstep.report.findings.registry import Format

_LINES = 24  # of an example; a SARIF log is ten times as long


def page(formats: Iterable[Format], example: Checked) -> str:
    """What each format is for and what it makes of `example`, in Markdown."""
    parts = [
        "# Output formats",
        "`halfstep check --format NAME` writes findings for people and for other programs. This"
        " page is written from the formats themselves by `make docs`; each shows the same finding,"
        " shortened where it is long. Exit codes are the same for all. How to add one:"
        " [linting](linting.md#output-for-other-programs).",
    ]
    for each in formats:
        parts += [f"## {each.name}", each.text, f"```\n{_shortened(each, example)}\n```"]
    return "\n\n".join(parts) + "\n"


def _shortened(form: Format, example: Checked) -> str:
    lines = "\n".join(form.render(example)).splitlines()
    return "\n".join(lines if len(lines) <= _LINES else [*lines[:_LINES], "..."])
