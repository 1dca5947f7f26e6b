"""The pages about the rules are what the rules say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from halfstep.report.findings.rule_pages import page
from halfstep.rules import registry
from halfstep.rules.text import rule_text

ROOT = Path(__file__).parents[2]
RULES = registry.select()


def test_pages_are_current() -> None:
    command = [sys.executable, "scripts/linter_docs.py", "--check"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.stdout, result.returncode) == ("", 0)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_page_holds_all_that_a_rule_says(rule: type[registry.Rule]) -> None:
    text = page(rule_text(rule))
    for part in (rule.code, rule.name, rule.severity, rule.bad.strip(), rule.good.strip()):
        assert part in text
    for head in ("What", "Why", "Source", "Finding", "Remedy"):
        assert f"**{head}.** " in text
    assert "{" not in text.split("## Wrong")[0]
