"""What the docs show of the linter is what it prints, and the checklist knows its rules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from halfstep.check.output.checklist import CHECKLIST
from halfstep.cli.check import check
from halfstep.cli.check_options import parser
from halfstep.rules import registry

DOCS = Path(__file__).parents[2] / "docs"
LINTING = (DOCS / "linting.md").read_text(encoding="utf-8")
CHECKLIST_PAGE = (DOCS / "checklist.md").read_text(encoding="utf-8")


def test_output_of_the_docs_is_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(registry.load("HS101").bad.replace("  # <- HS101", ""))
    assert check(["train.py"]) == 1
    shown = re.search(r"```\n\$ halfstep check train.py\n(.*?)```", LINTING, re.DOTALL)
    assert shown is not None
    assert capsys.readouterr().out == shown.group(1)


def test_every_option_is_in_the_docs() -> None:
    options = {name for action in parser()._actions for name in action.option_strings}
    missing = {name for name in options - {"-h", "--help"} if name not in LINTING}
    assert missing == set()


def test_rules_of_the_checklist_exist_and_are_in_its_page() -> None:
    rows = re.findall(r"^\| (.+?) \| .+? \| (.+?) \|$", CHECKLIST_PAGE, re.MULTILINE)[1:]
    page = {text: tuple(re.findall(r"\[(HS\d+)\]\(rules/", codes)) for text, codes in rows}
    assert page == {line.text: line.codes for line in CHECKLIST}
    assert {code for line in CHECKLIST for code in line.codes} <= {*registry.names()}


def test_links_between_the_pages_lead_somewhere() -> None:
    for path in [DOCS / "linting.md", DOCS / "checklist.md", *(DOCS / "rules").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.name}: {target}"
