"""``halfstep rules``: the list of rules."""

from __future__ import annotations

import argparse


def rules(arguments: list[str]) -> int:
    """Run the command; the exit code is 0."""
    options = _parser().parse_args(arguments)
    from halfstep.report.findings.rule_pages import explanation, rule_line
    from halfstep.rules.registry import select
    from halfstep.rules.text import rule_text

    wanted = [code.strip().upper() for code in options.codes]
    texts = [rule_text(rule) for rule in select(wanted)]
    exact = [text.code for text in texts] == wanted
    if options.json:
        import json

        print(json.dumps({"rules": [text.to_dict() for text in texts]}, indent=2))
    else:
        print("\n".join(map(explanation if exact else rule_line, texts)))
    return 0


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="halfstep rules",
        description="List the rules of a correct mixed-precision step; of one code, say it all.",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, width=96),
    )
    made.add_argument("codes", nargs="*", metavar="CODE", help="codes or beginnings, as HS2")
    made.add_argument("--json", action="store_true", help="print JSON, with the examples")
    return made
