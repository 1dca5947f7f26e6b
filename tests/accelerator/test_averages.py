"""Averaged weights and buffers on the road where the host commits late.

What they hold must depend on nobody having looked, and on no forward that came in between.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import halfstep as hs
from emulated import emulated_device, inner

EPS = torch.finfo(torch.float32).eps


class OwnAverage(AveragedModel):
    """A user's, with an update of its own."""

    def update_parameters(self, model: nn.Module) -> None:
        super().update_parameters(model)


SETTINGS: dict[str, Any] = {
    "decay": lambda model: 0.9,
    "mean": lambda model: AveragedModel(model),
    "own function": lambda model: AveragedModel(
        model, avg_fn=lambda old, new, count: (old * 3 + new) / 4, use_buffers=False
    ),
    "own class": lambda model: OwnAverage(
        model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True
    ),
}


def run(device: str, setting: str, looks: str, steps: int = 5) -> hs.Engine:
    """Windows with ever larger inputs, of which the third is skipped."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 4))
    model = model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    engine = hs.Engine(model, optimizer, precision="fp32", ema=SETTINGS[setting](model))
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        x = torch.randn(5, 8, generator=generator) * (step + 1)
        if step == 2:
            x = x * math.inf
        outcome = engine.train_step([x.to(device)], lambda model, x: model(x).square().mean())
        if looks == "outcome":
            outcome.settle()
        elif looks == "average":
            assert engine.ema is not None
    return engine


def average_of(engine: hs.Engine) -> dict[str, Tensor]:
    assert engine.ema is not None
    return {name: inner(value).clone() for name, value in engine.ema.state_dict().items()}


@pytest.mark.parametrize("looks", ["never", "outcome", "average"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_average_equals_that_of_the_cpu_whoever_looked(setting: str, looks: str) -> None:
    # oracle: the CPU, which commits each step at once; the operations are the same, but for torch's
    # plain mean, which has other ones where lists of tensors are fast
    expected = average_of(run("cpu", setting, "never"))
    with emulated_device():
        found = average_of(run("cuda", setting, looks))
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        if setting == "mean":
            assert torch.allclose(value, found[name], rtol=4 * EPS, equal_nan=True), name
        else:
            assert torch.equal(value.nan_to_num(), found[name].nan_to_num()), name
    assert int(found["n_averaged"]) == 4


@pytest.mark.parametrize("setting", SETTINGS)
def test_buffers_of_the_model_are_its_own_after_a_late_commit(setting: str) -> None:
    with emulated_device():
        engine = run("cuda", setting, "never", steps=2)
        buffers = list(engine.model.buffers())
        before = [inner(buffer).clone() for buffer in buffers]
        engine.model(torch.ones(5, 8, device="cuda"))  # moves them
        engine.settle()
        after = list(engine.model.buffers())
        assert all(a is b for a, b in zip(after, buffers, strict=True))
        assert int(inner(after[-1])) == int(before[-1]) + 1


def test_forward_before_a_late_commit_is_in_no_average() -> None:
    # oracle: the same average, committed before that forward
    averages = []
    for settles_first in (True, False):
        with emulated_device():
            engine = run("cuda", "decay", "never", steps=2)
            if settles_first:
                engine.settle()
            engine.model(torch.full((5, 8), 100.0, device="cuda"))
            averages.append(average_of(engine))
    for name, value in averages[0].items():
        assert torch.equal(value, averages[1][name]), name


def test_buffers_kept_for_a_skipped_step_are_in_no_later_average() -> None:
    # the update after the skip is decided by the host, which keeps no buffers: closed form
    with emulated_device():
        net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).to("cuda")
        optimizer = torch.optim.AdamW(net.parameters(), fused=True)
        engine = hs.Engine(
            net, optimizer, precision="fp32", ema=0.9, veto=lambda facts: facts.loss > 100
        )
        for factor in (1.0, 1.0, 1e4):
            x = torch.randn(5, 4, device="cuda") + factor
            engine.train_step([x], lambda net, x: net(x).square().mean() * x.mean())
        assert engine.num_skipped == 1
        before = average_of(engine)["module.1.running_mean"]
        for group in optimizer.param_groups:
            group["fused"] = None
        x = torch.randn(5, 4, device="cuda")
        assert engine.train_step([x], lambda net, x: net(x).square().mean()).updated
        now, averaged = inner(net[1].running_mean), average_of(engine)["module.1.running_mean"]
        assert torch.allclose(averaged, 0.9 * before + 0.1 * now, rtol=16 * EPS)
