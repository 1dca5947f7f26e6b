"""A skipped step moves nothing, to the bit, for every optimizer, first step or later."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import halfstep as hs
from optimizers import CASES, make_optimizer
from snapshots import differences, snapshot


def build(case: tuple[str, str]) -> tuple[nn.Module, torch.optim.Optimizer, hs.Engine]:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = make_optimizer(case, model.parameters())
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
    engine = hs.Engine(
        model, optimizer, precision="fp32", loss_scale=2.0**10, max_norm=1.0, schedule=schedule
    )
    return model, optimizer, engine


def loss_fn(model: nn.Module, factor: float) -> torch.Tensor:
    loss: torch.Tensor = (model(torch.ones(4, 8)) * factor).square().mean()
    return loss


@pytest.mark.parametrize("bad", [math.inf, math.nan], ids=str)
@pytest.mark.parametrize("steps_before", [0, 2])
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_skip_of_any_optimizer_moves_no_bit(
    case: tuple[str, str], steps_before: int, bad: float
) -> None:
    model, optimizer, engine = build(case)
    for _ in range(steps_before):
        assert engine.train_step([1.0], loss_fn).updated
    before = snapshot(model, optimizer)
    counters = (engine.num_updates, engine.consumed, optimizer.param_groups[0]["lr"])
    outcome = engine.train_step([1.0, bad], loss_fn)
    assert (outcome.skipped, outcome.reason) == (True, "non_finite")
    assert differences(before, snapshot(model, optimizer)) == []
    assert (engine.num_updates, engine.consumed, optimizer.param_groups[0]["lr"]) == counters
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_step_after_a_skip_equals_the_run_without_it(case: tuple[str, str]) -> None:
    # oracle: the same run without the bad window
    runs = []
    for windows in ([1.0, 0.5], [math.nan, 1.0, math.inf, 0.5]):
        torch.manual_seed(0)
        model, _, engine = build(case)
        for factor in windows:
            engine.train_step([factor], loss_fn)
        runs.append(snapshot(model))
    assert differences(runs[0], runs[1]) == []


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_step_of_any_optimizer_moves_the_weights(case: tuple[str, str]) -> None:
    model, optimizer, engine = build(case)
    before = snapshot(model)
    assert engine.train_step([1.0], loss_fn).updated
    assert differences(before, snapshot(model)) != []
    assert optimizer.param_groups[0]["lr"] == pytest.approx(
        0.9 * optimizer.param_groups[0]["initial_lr"]
    )
