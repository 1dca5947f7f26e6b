"""``python -m zoo --half development``: see `zoo`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from zoo.case import Case, all_cases
from zoo.runner import Settings, fingerprint, run_all
from zoo.summary import document, figures, lines

HALVES = ("development", "held-out", "both")


def arguments() -> argparse.ArgumentParser:
    """What the command line takes."""
    parser = argparse.ArgumentParser(prog="python -m zoo", description=__doc__)
    parser.add_argument("--half", choices=HALVES, default="development")
    parser.add_argument(
        "--plain", action="store_true", help="run the cases in each format without the doctor"
    )
    parser.add_argument("--only", action="append", metavar="NAME", help="this case; repeatable")
    parser.add_argument("--list", action="store_true", help="print the names, run nothing")
    parser.add_argument("--folder", type=Path, default=Path("runs/zoo"), help="for results")
    parser.add_argument("--json", type=Path, help="write everything into this file")
    parser.add_argument("--again", action="store_true", help="forget the results that are there")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for one case")
    parser.add_argument("--parallel", type=int, choices=(1, 2), default=2)
    return parser


def chosen(half: str, only: list[str] | None) -> dict[str, Case]:
    """The cases of a half, or those of them that were named.

    Args:
        half: One of `HALVES`.
        only: Names.

    Raises:
        ValueError: A name that no case has, or one of the other half: so that nobody looks at a
            held-out case by mistake.
    """
    every = all_cases()
    unknown = [name for name in only or () if name not in every]
    if unknown:
        raise ValueError(f"no case is named {', '.join(unknown)}; --list prints all names.")
    found = {name: case for name, case in every.items() if half in (case.half, "both")}
    if elsewhere := [name for name in only or () if name not in found]:
        other = every[elsewhere[0]].half
        raise ValueError(f"{', '.join(elsewhere)} is in the other half; give --half {other} too.")
    return {name: case for name, case in found.items() if not only or name in only}


def main(given: list[str] | None = None) -> int:
    """Run what was asked for.

    Args:
        given: The arguments; by default those of the process.

    Returns:
        0 where every case is right, 1 where one is not, 2 where the arguments are wrong.
    """
    options = arguments().parse_args(given)
    try:
        cases = chosen(options.half, options.only)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if options.list:
        for case in cases.values():
            print(
                f"{case.name}: {case.kind}, {'planted' if case.truth else 'healthy'}, {case.half}"
            )
        return 0
    mode = "plain" if options.plain else "doctor"
    folder = options.folder.resolve() / mode
    if options.again:
        for name in cases:
            (folder / f"{name}.json").unlink(missing_ok=True)
    settings = Settings(mode, folder, options.limit, options.parallel, fingerprint())
    results = run_all(cases.values(), settings, lambda line: print(line, flush=True))
    print(*lines(cases, results), sep="\n")
    if options.json:
        made = document(options.half, mode, cases, results)
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    count = figures(cases, results)
    wrong = count["false_alarms"] + count["planted"] - count["place_and_cause_right"]
    unhealed = count["remedies_followed"] - count["remedies_that_heal"]
    return 1 if wrong + unhealed + count["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
