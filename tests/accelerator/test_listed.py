"""The one list of what only a real device can show is complete, and none of it is out of date."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "accelerator.md"


def marked() -> set[tuple[str, str]]:
    """What each marked test shows, and its name for pytest."""
    found = set()
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for mark in getattr(node, "decorator_list", []):
                if ast.unparse(mark).startswith("pytest.mark.real_device("):
                    (shows,) = (k.value.value for k in mark.keywords)
                    name = path.relative_to(TESTS.parent).as_posix()
                    found.add((shows, f"{name}::{node.name}"))  # type: ignore[attr-defined]
    return found


def test_page_lists_every_test_that_needs_a_device_with_its_command() -> None:
    text = PAGE.read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| (.*?) \| `pytest (tests/\S+::\S+)` \|$", text, re.MULTILINE))
    assert listed == marked()
    assert len(listed) == 4


def test_no_test_skips_for_want_of_a_device_without_the_mark() -> None:
    # a folder that is skipped as a whole rots unseen
    for path in (TESTS / "gpu").glob("test_*.py"):
        for line in path.read_text(encoding="utf-8").splitlines():
            assert "cuda.is_available()" not in line, path
            assert "pytest.skip(" not in line, path
