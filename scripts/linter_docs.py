"""Writes docs/rules and docs/formats.md from the rules and output formats themselves.

python scripts/linter_docs.py            # write
python scripts/linter_docs.py --check    # say what is not current; exit code 1 if anything is
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from halfstep import __version__
from halfstep.check.linter import check_source
from halfstep.check.output.checklist import answers
from halfstep.report.findings import registry as formats
from halfstep.report.findings.checked import Checked
from halfstep.report.findings.format_page import page as format_page
from halfstep.report.findings.rule_pages import index_page, page
from halfstep.rules.registry import load, select
from halfstep.rules.text import rule_text

DOCS = Path(__file__).parents[1] / "docs"
EXAMPLE = "HS101"


def pages() -> dict[str, str]:
    """Path below docs to content."""
    texts = [rule_text(rule) for rule in select()]
    return {
        "formats.md": format_page(map(formats.load, formats.names()), example()),
        "rules/README.md": index_page(texts),
        **{f"rules/{t.code.lower()}.md": page(t) for t in texts},
    }


def example() -> Checked:
    """One finding of one rule."""
    rule = load(EXAMPLE)
    text = rule.bad.replace(f"  # <- {EXAMPLE}", "")
    report = check_source("train.py", text.encode(), select([EXAMPLE]))
    return Checked(
        report.found,
        report.num_files,
        problems=[],
        trains=True,
        checklist=lambda: answers(report.seen, report.findings, [EXAMPLE]),
        rules=lambda: [rule_text(rule)],
        version=__version__,
    )


def main() -> int:
    """Write or compare; returns the exit code."""
    parser = argparse.ArgumentParser(description="Write the pages about rules and formats.")
    parser.add_argument("--check", action="store_true", help="write nothing")
    only_check = parser.parse_args().check
    wanted = pages()
    there = [*(DOCS / "rules").glob("*.md"), *DOCS.glob("formats.md")]
    present = {p.relative_to(DOCS).as_posix(): p.read_text(encoding="utf-8") for p in there}
    stale = sorted(name for name in {*wanted, *present} if wanted.get(name) != present.get(name))
    for name in stale:
        print(f"docs/{name}: {'not current; run make docs' if only_check else 'written'}")
        if not only_check:
            write(name, wanted.get(name))
    return 1 if only_check and stale else 0


def write(name: str, text: str | None) -> None:
    """Write a page, or remove that of a rule that is gone."""
    path = DOCS / name
    if text is None:
        path.unlink()
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    sys.exit(main())
