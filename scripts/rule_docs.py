"""Writes docs/rules from the rules themselves.

python scripts/rule_docs.py            # write
python scripts/rule_docs.py --check    # say what is not current; exit code 1 if anything is
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from halfstep.report.rule_pages import index_page, page
from halfstep.rules.registry import select
from halfstep.rules.text import rule_text

FOLDER = Path(__file__).parents[1] / "docs" / "rules"


def pages() -> dict[str, str]:
    """File name to content."""
    texts = [rule_text(rule) for rule in select()]
    return {"README.md": index_page(texts), **{f"{t.code.lower()}.md": page(t) for t in texts}}


def main() -> int:
    """Write or compare; returns the exit code."""
    parser = argparse.ArgumentParser(description="Write docs/rules from the rules.")
    parser.add_argument("--check", action="store_true", help="write nothing")
    only_check = parser.parse_args().check
    wanted = pages()
    present = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    stale = sorted(name for name in {*wanted, *present} if wanted.get(name) != present.get(name))
    for name in stale:
        print(f"docs/rules/{name}: {'not current; run make docs' if only_check else 'written'}")
        if not only_check:
            write(name, wanted.get(name))
    return 1 if only_check and stale else 0


def write(name: str, text: str | None) -> None:
    """Write a page, or remove that of a rule that is gone."""
    if text is None:
        (FOLDER / name).unlink()
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / name).write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    sys.exit(main())
