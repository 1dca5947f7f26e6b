"""Moving averages of weights: of a library, of the project, and what only sounds like one."""

from __future__ import annotations

import pytest

from halfstep.check.linter import check_text
from halfstep.rules import registry

RULES = registry.select(["HS109"])
SETUP = registry.load("HS101").bad.split("for x, y in batches:\n")[0]
LOOP = """\
for x, y in batches:
    scaler.scale(loss_of(x, y)).backward()
    scaler.step(optimizer)
    before = scaler.get_scale()
    scaler.update()
    optimizer.zero_grad()
"""
OWN = """\
class MovingAverage:
    def __init__(self, model):
        self.weights = [p.clone() for p in model.parameters()]

    def update(self, model):
        for mine, new in zip(self.weights, model.parameters()):
            mine.lerp_(new, 0.1)


"""
MAKE = {
    "library": "import timm\n\nema = timm.utils.ModelEmaV2(model)\n",
    "project": OWN + "average = MovingAverage(model)\n",
}


@pytest.mark.parametrize("make", MAKE)
def test_average_that_moves_after_a_skip_is_a_note(make: str) -> None:
    name = "ema" if make == "library" else "average"
    text = SETUP + MAKE[make] + LOOP + f"    {name}.update(model)\n"
    assert [f.line for f in check_text("train.py", text, RULES)] == [text.count("\n")]


@pytest.mark.parametrize("make", MAKE)
def test_average_that_asks_for_the_skip_is_silent(make: str) -> None:
    name = "ema" if make == "library" else "average"
    asked = f"    if scaler.get_scale() >= before:\n        {name}.update(model)\n"
    assert check_text("train.py", SETUP + MAKE[make] + LOOP + asked, RULES) == []


def test_name_that_only_holds_the_letters_is_no_average() -> None:
    text = SETUP + "schema = make()\n" + LOOP + "    schema.update(model)\n"
    assert check_text("train.py", text, RULES) == []
