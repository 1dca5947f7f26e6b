"""``halfstep check``: plain argparse, because it must start faster than Typer does."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from halfstep.check.linter import Report, check_paths
from halfstep.records.errors import HalfstepError
from halfstep.rules.registry import select

if TYPE_CHECKING:
    from halfstep.records.finding import Finding


def check(arguments: list[str]) -> int:
    """Run the command; returns the exit code: 0 clean, 1 errors found, 2 could not run."""
    options = _parser().parse_args(arguments)
    try:
        rules = select(_codes(options.select), _codes(options.ignore))
        report = check_paths(options.paths, rules)
    except HalfstepError as error:
        print(f"halfstep: {error}", file=sys.stderr)
        return 2
    shown = [f for f in report.findings if options.strict or f.severity != "note"]
    for path, reason, _ in report.problems:
        print(f"{path}: not checked: {reason}", file=sys.stderr)
    if options.json:
        print(_json(report, shown))
    else:
        _print(report, shown)
    if any(f.severity == "error" for f in shown):
        return 1
    return 2 if any(named for _, _, named in report.problems) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="halfstep check",
        description="Find mixed-precision mistakes in training scripts, without running them.",
        # a width of its own: asking the terminal for it imports four compression libraries
        formatter_class=lambda prog: argparse.HelpFormatter(prog, width=96),
    )
    parser.add_argument("paths", nargs="+", metavar="PATH", help="files and folders")
    parser.add_argument("--select", default="", help="only these rules: HS101,HS2")
    parser.add_argument("--ignore", default="", help="all but these rules")
    parser.add_argument("--strict", action="store_true", help="show notes too")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _codes(text: str) -> list[str]:
    return [code.strip().upper() for code in text.split(",") if code.strip()]


def _print(report: Report, shown: list[Finding]) -> None:
    for finding in shown:
        place = f"{finding.path}:{finding.line}:{finding.column}"
        print(f"{place}: {finding.code} {finding.severity}: {finding.message}")
        for related in finding.related:
            print(f"    {related.path}:{related.line}: {related.message}")
        print(f"    {finding.remedy}")
    print(_summary(report, shown))


def _summary(report: Report, shown: list[Finding]) -> str:
    files = f"{report.num_files} file{'s' if report.num_files != 1 else ''}"
    counts = {s: sum(f.severity == s for f in shown) for s in ("error", "warning", "note")}
    parts = [f"{n} {s}{'s' if n != 1 else ''}" for s, n in counts.items() if n]
    return f"{', '.join(parts) or 'no findings'} in {files}"


def _json(report: Report, shown: list[Finding]) -> str:
    import json

    problems = [{"path": path, "message": reason} for path, reason, _ in report.problems]
    data = {
        "findings": [finding.to_dict() for finding in shown],
        "num_files": report.num_files,
        "problems": problems,
    }
    return json.dumps(data, indent=2)
