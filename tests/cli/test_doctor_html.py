"""``halfstep doctor --html``."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from user_recipes import Invoke

import halfstep as hs
from halfstep.report import page

OVERFLOWING = """
import torch
from torch import nn
import halfstep as hs

class Square(nn.Module):
    def forward(self, x):
        return x * x

def build():
    return hs.Recipe(
        name="squares",
        model=lambda: nn.Sequential(nn.Linear(4, 4), Square(), nn.Linear(4, 1)),
        loss_fn=lambda model, x: model(x).float().mean(),
        batches=lambda: [torch.full((2, 4), 3000.0)],
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=1e-9),
    )
"""


def diagnosis_in(path: str) -> hs.Diagnosis:
    text = Path(path).read_text(encoding="utf-8")
    found = re.search(r'id="halfstep-data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return hs.Diagnosis.from_dict(json.loads(found.group(1))["diagnosis"])


def test_page_holds_the_diagnosis_that_json_prints(halfstep: Invoke, folder: Path) -> None:
    (folder / "squares.py").write_text(OVERFLOWING)
    result = halfstep("doctor", "squares.py:build", "--html", "out.html", "--json")
    assert result.exit_code == 1  # 3000 * 3000 is beyond 65504
    printed = hs.Diagnosis.from_dict(json.loads(result.stdout))
    assert diagnosis_in("out.html").to_dict() == printed.to_dict()  # NaN as text equals itself
    text = Path("out.html").read_text(encoding="utf-8")
    assert "Breaks in low precision" in text
    assert "Sequential.1" in text


def test_healthy_recipe_has_a_page_too(halfstep: Invoke) -> None:
    assert halfstep("doctor", "my.py:build", "--html", "out.html").exit_code == 0
    assert diagnosis_in("out.html").is_healthy


def test_page_without_a_place_is_known_before_the_first_run(halfstep: Invoke) -> None:
    result = halfstep("doctor", "my.py:build", "--html", "no/out.html")
    (line,) = result.stderr.splitlines()
    assert (result.exit_code, result.stdout) == (2, "")
    assert "cannot write the page to 'no/out.html'" in line


def test_page_without_jinja2_is_known_before_the_first_run(
    halfstep: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    page._environment.cache_clear()
    result = halfstep("doctor", "my.py:build", "--html", "out.html")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "pip install 'halfstep[cli]'" in result.stderr.splitlines()[-1]
    assert not Path("out.html").exists()
