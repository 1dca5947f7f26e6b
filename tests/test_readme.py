"""The README's example runs and prints what the README says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e-?\d+)?")


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found.group(1)


def test_readme_example_prints_what_the_readme_shows() -> None:
    done = subprocess.run(
        [sys.executable, "-c", block("python")], capture_output=True, text=True, check=True
    )
    shown, printed = block("text").splitlines(), done.stdout.splitlines()
    assert [NUMBER.sub("N", line) for line in printed] == [NUMBER.sub("N", line) for line in shown]
    for wanted, found in zip(shown, printed, strict=True):
        numbers = zip(NUMBER.findall(wanted), NUMBER.findall(found), strict=True)
        for a, b in numbers:  # other processors round FP16 sums in another order
            assert float(b) == pytest.approx(float(a), rel=0.05)


def test_readme_has_at_most_150_lines_and_both_commands_at_the_top() -> None:
    lines = README.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150
    assert "make run" in "\n".join(lines[:8])
    assert "make test" in "\n".join(lines[:8])


def test_readme_conversion_changes_fewer_than_ten_lines_of_the_old_loop() -> None:
    diff = block("diff").splitlines()
    removed = [line for line in diff if line.startswith("-")]
    added = [line for line in diff if line.startswith("+")]
    assert len(removed) < 10
    assert len(added) < 10


@pytest.mark.parametrize(
    "page", ["README.md", *(f"docs/{p.name}" for p in README.parent.glob("docs/*.md"))]
)
def test_links_of_a_page_lead_somewhere(page: str) -> None:
    path = README.parent / page
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), target
