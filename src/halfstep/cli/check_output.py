"""What ``halfstep check`` prints."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from halfstep import __version__
from halfstep.report.findings.checked import Checked
from halfstep.report.findings.registry import load

if TYPE_CHECKING:
    from halfstep.check.output.reports import Report
    from halfstep.check.repair.fix import Fixed
    from halfstep.records.rule_text import RuleText
    from halfstep.records.source_finding import SourceFinding
    from halfstep.rules.rule import Rule


def write(
    report: Report,
    shown: list[SourceFinding],
    options: Namespace,
    rules: Sequence[type[Rule]],
    stream: TextIO,
) -> None:
    """Print a report.

    Args:
        report: Of the check.
        shown: Its findings without those that were not asked for.
        options: Of the command.
        rules: That were asked.
        stream: Where to.
    """
    checked = Checked(
        shown,
        report.num_files,
        problems=[(path, reason) for path, reason, _ in report.problems],
        trains=bool(report.seen),
        checklist=lambda: _checklist(report, shown, rules),
        rules=lambda: _texts(rules),
        version=__version__,
        statistics=options.statistics,
        colours=stream.isatty() and "NO_COLOR" not in os.environ,
    )
    for line in load("json" if options.json else options.format).render(checked):
        print(line, file=stream)


def _checklist(
    report: Report, shown: list[SourceFinding], rules: Sequence[type[Rule]]
) -> list[tuple[str, str]]:
    from halfstep.check.output.checklist import answers

    return answers(report.seen, [source.finding for source in shown], {r.code for r in rules})


def _texts(rules: Sequence[type[Rule]]) -> list[RuleText]:
    from halfstep.rules.text import rule_text

    return [rule_text(rule) for rule in rules]


def write_diff(path: str, fixed: Fixed) -> None:
    """Print what repairs would change."""
    import difflib

    from halfstep.check.documents.files import decode

    old, new = (decode(data)[0].splitlines(keepends=True) for data in (fixed.old, fixed.new))
    for line in difflib.unified_diff(old, new, f"a/{path}", f"b/{path}"):
        sys.stdout.write(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n")
