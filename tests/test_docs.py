"""The recipe of the docs trains."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import halfstep as hs

DOCS = Path(__file__).parents[1] / "docs"


def test_recipe_of_the_docs_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (DOCS / "recipes.md").read_text(encoding="utf-8")
    found = re.search(r"```python\n(# my.py.*?)```", text, re.DOTALL)
    assert found is not None
    monkeypatch.chdir(tmp_path)
    Path("my.py").write_text(found.group(1))
    run = hs.fit(hs.load_recipe("my.py:build"), precision="fp32", steps=60)
    assert run.status == "finished"
    assert run.steps[-1].loss < 0.9 * run.steps[0].loss
    run.save("run.jsonl")
    assert hs.RunRecord.load("run.jsonl") == run
