"""Saving and loading right after a step that the host has not looked at yet.

The kernels of a CPU skip on `found_inf` as those of CUDA do; with the norm left in a tensor the
engine takes the road of an accelerator, late commit included.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import halfstep as hs
from halfstep.training.engine import settings
from halfstep.update import OptimizerSlot
from halfstep.update.decision.measured import Measured
from halfstep.update.optimizers.norm import _device_norm
from halfstep.update.ranks.ranks import ONE, Ranks

X = torch.arange(15.0).reshape(5, 3) / 10
RATES = [0.01 * 0.5**step for step in range(8)]


class DeferredSlot(OptimizerSlot):
    def measure(self, ranks: Ranks = ONE) -> Measured:
        found = super().measure(ranks)
        return replace(found, norm=_device_norm(found.grads)) if found.grads else found


@pytest.fixture(autouse=True)
def _defer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "OptimizerSlot", DeferredSlot)


def build() -> tuple[hs.Engine, Callable[[], hs.StepOutcome]]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    engine = hs.Engine(model, optimizer, precision="fp32", schedule=schedule)
    engine.train_step([(X,)], lambda m, b: m(b[0]).square().mean()).settle()  # makes the state

    def step() -> hs.StepOutcome:
        return engine.train_step([(X,)], lambda m, b: m(b[0]).square().mean())

    return engine, step


def rate(engine: hs.Engine) -> float:
    found: float = engine.optimizer.param_groups[0]["lr"]
    return found


def test_step_is_left_open_on_this_road() -> None:
    # the oracle of the tests below: nobody has looked, so the schedule has not moved yet
    engine, step = build()
    step()
    assert rate(engine) == RATES[1]
    engine.settle()
    assert rate(engine) == RATES[2]


def test_file_holds_the_rate_after_the_step(tmp_path: Path) -> None:
    engine, step = build()
    step()
    hs.save_checkpoint(tmp_path / "run.pt", engine)
    content = torch.load(tmp_path / "run.pt", weights_only=True)
    assert content["optimizer"]["optimizer"]["param_groups"][0]["lr"] == RATES[2]
    assert content["engine"]["schedules"]["optimizer"]["state"]["_last_lr"] == [RATES[2]]


def test_states_saved_by_hand_hold_the_rate_after_the_step() -> None:
    engine, step = build()
    step()
    assert engine.optimizer.state_dict()["param_groups"][0]["lr"] == RATES[2]


@pytest.mark.parametrize("by_hand", [False, True])
def test_load_over_an_open_step_goes_on_from_the_file(by_hand: bool, tmp_path: Path) -> None:
    engine, step = build()
    hs.save_checkpoint(tmp_path / "run.pt", engine)
    saved: Any = [each.state_dict() for each in (engine.model, engine.optimizer, engine)]
    saved = torch.load(tmp_path / "run.pt", weights_only=True) if not by_hand else saved
    step()
    step()
    if by_hand:
        for owner, state in zip((engine.model, engine.optimizer, engine), saved, strict=True):
            owner.load_state_dict(state)
    else:
        hs.load_checkpoint(tmp_path / "run.pt", engine)
    assert rate(engine) == RATES[1]
    assert engine.num_updates == 1
    assert [step().lr for _ in range(3)] == RATES[1:4]


def test_optimizer_outlives_its_engine() -> None:
    engine, step = build()
    step()
    optimizer = engine.optimizer
    del engine, step
    assert len(optimizer.state_dict()["param_groups"]) == 1


@pytest.fixture
def accelerator() -> Iterator[Any]:
    """Accelerate keeps its settings in process-wide singletons and adds a warning filter."""
    accelerate = pytest.importorskip("accelerate", reason="needs accelerate")
    states = accelerate.state.AcceleratorState, accelerate.state.GradientState
    with warnings.catch_warnings():
        yield accelerate.Accelerator(cpu=True)
    states[0]._reset_state(reset_partial_state=True)
    states[1]._reset_state()


def test_optimizer_in_a_wrapper_is_taken_and_saved(tmp_path: Path, accelerator: Any) -> None:
    # Accelerate's wrapper is an Optimizer that never called its base class
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    inner = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    wrapped = accelerator.prepare(inner)
    schedule = torch.optim.lr_scheduler.ExponentialLR(wrapped, 0.5)
    engine = hs.Engine(model, wrapped, precision="fp32", schedule=schedule)
    engine.train_step([(X,)], lambda m, b: m(b[0]).square().mean())
    hs.save_checkpoint(tmp_path / "run.pt", engine)
    content = torch.load(tmp_path / "run.pt", weights_only=True)
    assert content["optimizer"]["optimizer"]["param_groups"][0]["lr"] == RATES[1]
    hs.load_checkpoint(tmp_path / "run.pt", engine)
    assert engine.num_updates == 1
    plain, _ = build()
    hs.load_checkpoint(tmp_path / "run.pt", plain)
    assert rate(plain) == RATES[1]
