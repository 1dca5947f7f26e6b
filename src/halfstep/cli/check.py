"""``halfstep check``: which files, which rules, what is printed, which exit code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from halfstep.check.linter import check_paths, check_source
from halfstep.check.settings import Settings, settings_for
from halfstep.cli.check_options import parser
from halfstep.records.errors import BadValueError
from halfstep.rules.registry import load, select

if TYPE_CHECKING:
    from halfstep.check.output.reports import Report
    from halfstep.records.source_finding import SourceFinding
    from halfstep.rules.rule import Rule


def check(arguments: list[str]) -> int:
    """Run the command.

    Returns:
        The exit code: 0 no errors, 1 errors found, 2 something could not be checked.

    Raises:
        BadValueError: Options or settings that make no sense.
    """
    options = parser().parse_args(arguments)
    return _explain(options.explain) if options.explain else _check(options)


def _explain(code: str) -> int:
    from halfstep.report.findings.rule_pages import explanation
    from halfstep.rules.text import rule_text

    print(explanation(rule_text(load(code.strip().upper()))))
    return 0


def _check(options: argparse.Namespace) -> int:
    if not options.paths:
        raise BadValueError("check needs files or folders; `halfstep check .` takes all here.")
    settings = Settings() if options.isolated else settings_for(options.paths)
    rules = select(
        _codes(options.select) or settings.select,
        (*settings.ignore, *_codes(options.ignore)),
    )
    from_stdin = "-" in options.paths
    if from_stdin and len(options.paths) > 1:
        raise BadValueError("stdin is checked alone; leave out the other paths or the '-'.")
    repair = options.fix or options.unsafe_fixes or options.diff
    if from_stdin:
        report, stream = _stdin(options, rules, settings, repair)
    else:
        report, stream = check_paths(options.paths, rules, settings, options.jobs), sys.stdout
        if repair:
            report = _repaired(report, options, rules, settings)
    shown = _shown(report, options, settings)
    if options.diff:
        return _exit_code(report, shown)
    for path, reason, _ in report.problems:
        print(f"{path}: not checked: {reason}", file=sys.stderr)
    from halfstep.cli.check_output import write

    write(report, shown, options, rules, stream)
    return _exit_code(report, shown)


def _codes(text: str | None) -> tuple[str, ...]:
    return tuple(code.strip().upper() for code in (text or "").split(",") if code.strip())


def _shown(report: Report, options: argparse.Namespace, settings: Settings) -> list[SourceFinding]:
    strict = options.strict or settings.strict
    return [source for source in report.found if strict or source.finding.severity != "note"]


def _exit_code(report: Report, shown: list[SourceFinding]) -> int:
    if any(source.finding.severity == "error" for source in shown):
        return 1
    return 2 if any(matters for _, _, matters in report.problems) else 0


def _stdin(
    options: argparse.Namespace, rules: Sequence[type[Rule]], settings: Settings, repair: bool
) -> tuple[Report, TextIO]:
    """With ``--fix`` the repaired text is what goes to stdout, the findings to stderr."""
    name, data = options.stdin_filename, sys.stdin.buffer.read()
    report = check_source(name, data, rules, settings)
    if not repair:
        return report, sys.stdout
    from halfstep.check.repair.fix import fix_data
    from halfstep.cli.check_output import write_diff

    fixed = fix_data(name, data, rules, settings, options.unsafe_fixes)
    if options.diff:
        write_diff(name, fixed)
        return report, sys.stderr
    sys.stdout.flush()
    sys.stdout.buffer.write(fixed.new)
    print(f"{name}: repaired {fixed}", file=sys.stderr)
    return check_source(name, fixed.new, rules, settings), sys.stderr


def _repaired(
    report: Report, options: argparse.Namespace, rules: Sequence[type[Rule]], settings: Settings
) -> Report:
    """The report after repairs, or the same one where they are only shown."""
    from halfstep.check.repair.fix import fix_report, write_whole
    from halfstep.cli.check_output import write_diff

    unwritten: list[tuple[str, str, bool]] = []
    for path, fixed in fix_report(report, rules, settings, options.unsafe_fixes):
        if options.diff:
            write_diff(path, fixed)
            continue
        try:
            write_whole(path, fixed.new)
            print(f"{path}: repaired {fixed}", file=sys.stderr)
        except OSError as error:
            unwritten.append((path, f"could not be written ({error.strerror})", True))
    if not options.diff:
        report = check_paths(options.paths, rules, settings, options.jobs)
    report.problems += unwritten
    return report
