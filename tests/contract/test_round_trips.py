"""state -> dict -> state is the identity for every stateful class, with unusual values.

A class with a ``state_dict`` that is not in the table fails the first test.
"""

from __future__ import annotations

import ast
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import halfstep as hs
from halfstep.training.engine.engine import Engine
from halfstep.update import OptimizerSlot
from halfstep.update.decision.veto import Facts
from snapshots import differences

ROOT = Path(hs.__file__).parent


def dynamic(used: bool) -> hs.DynamicLossScale:
    if not used:
        return hs.DynamicLossScale()
    scale = hs.DynamicLossScale(
        2.0**9,
        growth_factor=4.0,
        backoff_factor=0.25,
        growth_interval=7,
        min_scale=2.0,
        max_scale=2.0**20,
        hysteresis=3,
        max_consecutive_skips=9,
    )
    for found_inf in (0.0, 1.0, 0.0, 1.0):
        scale.update(torch.tensor(found_inf))
    return scale


def static(used: bool) -> hs.StaticLossScale:
    scale = hs.StaticLossScale(8.0 if used else 2.0)
    if used:
        scale.update(torch.tensor(1.0))
    return scale


def none(used: bool) -> hs.NoLossScale:
    scale = hs.NoLossScale()
    if used:
        scale.update(torch.tensor(1.0))
    return scale


def spike(used: bool) -> Any:
    condition = hs.veto.norm_spike(6)
    for number in range(5 if used else 0):
        facts = Facts(
            torch.tensor(1.0 + number, dtype=torch.float64),
            torch.tensor(0.5, dtype=torch.float64),
            torch.tensor(1.0, dtype=torch.float64),
            "optimizer",
        )
        condition(facts)
        condition.observe(facts, torch.tensor(number == 4), torch.tensor(number < 4))
    return condition


def scaler(used: bool) -> hs.GradScaler:
    if not used:
        return hs.GradScaler("cpu")
    made = hs.GradScaler(
        "cpu", init_scale=2.0**9, growth_factor=4.0, backoff_factor=0.25, growth_interval=7
    )
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(3):
        loss = model(torch.ones(1, 2) * (float("nan") if number == 1 else 1.0)).sum()
        made.scale(loss).backward()
        made.step(optimizer)
        made.update()
        optimizer.zero_grad()
    return made


def engine(used: bool) -> Engine:
    torch.manual_seed(int(used))
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    made = Engine(
        model,
        optimizer,
        precision="fp16",
        loss_scale=dynamic(used),
        schedule=torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5),
        ema=0.5,
        veto=hs.veto.norm_spike(6),
    )
    for number in range(4 if used else 0):
        x = torch.randn(4, 2) * (float("nan") if number == 2 else 1.0)
        made.train_step([(x,)], lambda m, b: hs.LossSum(m(b[0]).float().square().sum(), 4))
    return made


def slot(used: bool) -> OptimizerSlot:
    return engine(used)._update.slots[0]


MAKE: dict[str, Callable[[bool], Any]] = {
    "LossScale": static,
    "NoLossScale": none,
    "DynamicLossScale": dynamic,
    "NormSpike": spike,
    "GradScaler": scaler,
    "Engine": engine,
    "OptimizerSlot": slot,
}
# Parts of an engine that have no load of their own.
WITHIN_ENGINE = {"Followers"}


def test_every_class_with_a_state_is_in_the_table() -> None:
    found = set()
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                names = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
                found |= {node.name} if "state_dict" in names else set()
    mixins = {"ScalerState"}  # GradScaler's, in a file of its own
    assert found - mixins - WITHIN_ENGINE <= set(MAKE), found - set(MAKE)


@pytest.mark.parametrize("name", MAKE)
def test_state_goes_through_a_file_and_back_unchanged(name: str) -> None:
    used, fresh = MAKE[name](True), MAKE[name](False)
    state = used.state_dict()
    assert differences(state, fresh.state_dict()) != [], "the values must be no defaults"
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=True)
    fresh.load_state_dict(loaded)
    assert differences(state, fresh.state_dict()) == []
    assert differences(state, used.state_dict()) == []  # and the first is not changed by it


# an engine's state holds the averaged weights themselves, as states of torch's modules do
@pytest.mark.parametrize("name", [name for name in MAKE if name != "Engine"])
def test_state_is_a_copy_that_later_steps_do_not_change(name: str) -> None:
    used = MAKE[name](True)
    state = used.state_dict()
    text = str(state)
    used.load_state_dict(MAKE[name](False).state_dict())
    assert str(state) == text
