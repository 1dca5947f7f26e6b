"""The options of ``halfstep check``."""

from __future__ import annotations

import argparse

from halfstep.report.findings.registry import DEFAULT, names


def parser() -> argparse.ArgumentParser:
    """All of them; plain argparse, because it starts faster than Typer does."""
    made = argparse.ArgumentParser(
        prog="halfstep check",
        description="Find mixed-precision mistakes in training scripts, without running them.",
        epilog="Exit codes: 0 no errors, 1 errors found, 2 something could not be checked.",
        # a width of its own: asking the terminal for it imports four compression libraries
        formatter_class=lambda prog: argparse.HelpFormatter(prog, width=96),
    )
    made.add_argument("paths", nargs="*", metavar="PATH", help="files and folders; - for stdin")
    made.add_argument(
        "--stdin-filename", default="stdin.py", metavar="PATH", help="what stdin is called"
    )
    _choice(made)
    _output(made)
    _repair(made)
    made.add_argument("--jobs", type=_count, metavar="N", help="processes at most (default: cores)")
    return made


def _choice(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("which rules")
    group.add_argument("--select", metavar="CODES", help="only these, as HS101,HS2")
    group.add_argument("--ignore", metavar="CODES", help="all but these")
    group.add_argument("--strict", action="store_true", help="show notes too")
    group.add_argument("--isolated", action="store_true", help="read no pyproject.toml")


def _output(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("output")
    group.add_argument("--format", choices=names(), default=DEFAULT, help=f"default: {DEFAULT}")
    group.add_argument("--json", action="store_true", help="the same as --format json")
    group.add_argument("--statistics", action="store_true", help="count findings by rule")
    group.add_argument("--explain", metavar="CODE", help="say all about a rule, as HS109, and stop")


def _repair(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("repair")
    group.add_argument("--fix", action="store_true", help="repair what changes nothing in training")
    group.add_argument(
        "--unsafe-fixes", action="store_true", help="repair too what makes training right"
    )
    group.add_argument("--diff", action="store_true", help="show the repairs and write nothing")


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a number of processes from 1 on is needed, got {text!r}")
    return int(text)
