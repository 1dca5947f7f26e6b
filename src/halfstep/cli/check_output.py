"""What ``halfstep check`` prints."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from halfstep.check.output.reports import Report
    from halfstep.check.repair.fix import Fixed
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
    form = "json" if options.json else options.format
    if form == "text":
        _text(report, shown, options, rules, stream)
        return
    if form == "github":
        from halfstep.report.github import annotation

        for source in shown:
            print(annotation(source), file=stream)
        if options.statistics:
            _statistics(shown, stream)
        return
    import json

    data = _json(report, shown, options, rules) if form == "json" else _sarif(report, shown, rules)
    print(json.dumps(data, indent=2), file=stream)


def write_diff(path: str, fixed: Fixed) -> None:
    """Print what repairs would change."""
    import difflib

    from halfstep.check.documents.files import decode

    old, new = (decode(data)[0].splitlines(keepends=True) for data in (fixed.old, fixed.new))
    for line in difflib.unified_diff(old, new, f"a/{path}", f"b/{path}"):
        sys.stdout.write(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n")


def _text(
    report: Report,
    shown: list[SourceFinding],
    options: Namespace,
    rules: Sequence[type[Rule]],
    stream: TextIO,
) -> None:
    if shown:
        from halfstep.report.findings_text import FindingsText

        colours = stream.isatty() and "NO_COLOR" not in os.environ
        text = FindingsText(colours)
        for source in shown:
            print(text.block(source), file=stream)
    if options.statistics:
        _statistics(shown, stream)
    _checklist(report, shown, rules, stream)
    print(_last_line(report, shown), file=stream)


def _statistics(shown: list[SourceFinding], stream: TextIO) -> None:
    from halfstep.report.findings_text import statistics_lines

    for line in statistics_lines(source.finding for source in shown):
        print(line, file=stream)


def _checklist(
    report: Report, shown: list[SourceFinding], rules: Sequence[type[Rule]], stream: TextIO
) -> None:
    """Only where something trains in mixed precision."""
    if report.seen:
        from halfstep.check.output.checklist import answers

        run = {rule.code for rule in rules}
        for text, answer in answers(report.seen, [source.finding for source in shown], run):
            print(f"  {text:<42} {answer}", file=stream)


def _last_line(report: Report, shown: list[SourceFinding]) -> str:
    if not shown:
        return f"no findings in {report.num_files} file{'s' if report.num_files != 1 else ''}"
    from halfstep.report.findings_text import count_line

    line = count_line([source.finding for source in shown], report.num_files)
    ways = [source.applicability for source in shown if source.repair]
    options = {"--fix": ways.count("safe"), "--unsafe-fixes": ways.count("unsafe")}
    parts = [f"{n} can be put right with {option}" for option, n in options.items() if n]
    return "; ".join([line, *parts])


def _json(
    report: Report, shown: list[SourceFinding], options: Namespace, rules: Sequence[type[Rule]]
) -> dict[str, object]:
    from halfstep.check.output.checklist import answers

    findings = [source.finding for source in shown]
    codes = [finding.code for finding in findings]
    data: dict[str, object] = {
        "findings": [finding.to_dict() for finding in findings],
        "num_files": report.num_files,
        "problems": [{"path": path, "message": reason} for path, reason, _ in report.problems],
        "checklist": dict(answers(report.seen, findings, {rule.code for rule in rules})),
    }
    if options.statistics:
        data["statistics"] = {code: codes.count(code) for code in sorted(set(codes))}
    return data


def _sarif(
    report: Report, shown: list[SourceFinding], rules: Sequence[type[Rule]]
) -> dict[str, object]:
    from halfstep import __version__
    from halfstep.report.sarif import sarif
    from halfstep.rules.text import rule_text

    problems = [(path, reason) for path, reason, _ in report.problems]
    return sarif(shown, [rule_text(rule) for rule in rules], __version__, problems)
