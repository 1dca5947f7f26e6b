"""HS101 and HS110 put right: programs run with AMP and without, before and after the repair.

`order_programs.txt` holds the end of a loop's body for each: ``kind: repaired CODE`` where the
repair is made, ``kind: left CODE`` where a program would break, or train otherwise.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from halfstep.check.linter import check_text
from halfstep.check.repair.fix import fix_data
from halfstep.rules import registry

RULES = registry.select()
TOLERANCE = 4 * torch.finfo(torch.float16).eps  # a few roundings of FP16 values near 1
SCALES = (2.0**4, 2.0**10)
HEAD = """\
import torch
from torch import nn


def train(model, loader, optimizer, other, schedule, use_amp, limit, norms, scale):
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=use_amp)
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16, enabled=use_amp):
            loss = nn.functional.mse_loss(model(x), y)
"""


def programs(kind: str) -> dict[str, str]:
    found = {}
    for part in Path(__file__).with_name("order_programs.txt").read_text().split("kind: ")[1:]:
        head, *members = part.split("=== ")
        if head.startswith(kind):
            pairs = (member.split("\n", 1) for member in members)
            found |= {f"{head.split()[1]}: {name}": HEAD + body for name, body in pairs}
    return found


REPAIRED, LEFT = programs("repaired"), programs("left")


def fixed(text: str) -> str:
    return fix_data("train.py", text.encode(), RULES, unsafe=True).new.decode()


def train(text: str, use_amp: bool, scale: float = SCALES[0]) -> list[torch.Tensor]:
    """Weights after an epoch."""
    names: dict[str, Any] = {}
    exec(compile(text, "train.py", "exec"), names)
    torch.manual_seed(5)
    model, unused = nn.Linear(4, 1), nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    other = torch.optim.SGD([*unused.parameters(), *model.parameters()], lr=0.0)
    loader = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(6)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own about the order that HS110 finds
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        names["train"](model, loader, optimizer, other, schedule, use_amp, 0.1, [], scale)
    return [p.detach().clone() for p in model.parameters()]


def assert_close(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    torch.testing.assert_close(found, expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("name", [*REPAIRED])
def test_repair_puts_the_finding_right_and_adds_none(name: str) -> None:
    text = REPAIRED[name]
    before = {f.code for f in check_text("train.py", text, RULES) if f.severity != "note"}
    after = {f.code for f in check_text("train.py", fixed(text), RULES) if f.severity != "note"}
    assert before - after == {name.split(":")[0]}
    assert after <= before


@pytest.mark.parametrize("name", [*REPAIRED])
@pytest.mark.parametrize("scale", SCALES)
def test_repaired_program_trains_as_it_does_without_amp(name: str, scale: float) -> None:
    text = fixed(REPAIRED[name])
    assert_close(train(text, True, scale), train(text, False))


@pytest.mark.parametrize("name", [name for name in REPAIRED if name.startswith("HS101")])
def test_repair_of_a_clip_changes_nothing_without_amp(name: str) -> None:
    assert all(map(torch.equal, train(fixed(REPAIRED[name]), False), train(REPAIRED[name], False)))


@pytest.mark.parametrize("name", [name for name in REPAIRED if name.startswith("HS101")])
def test_clip_that_is_repaired_trained_otherwise_before(name: str) -> None:
    with pytest.raises(AssertionError):
        assert_close(train(REPAIRED[name], True), train(REPAIRED[name], False))


@pytest.mark.parametrize("name", [*LEFT])
def test_program_that_takes_a_person_stays_as_it_is(name: str) -> None:
    assert fixed(LEFT[name]) == LEFT[name]


@pytest.mark.parametrize("name", [*LEFT])
@pytest.mark.parametrize("use_amp", [True, False], ids=["with AMP", "without"])
def test_program_that_is_left_alone_runs(name: str, use_amp: bool) -> None:
    train(LEFT[name], use_amp)
