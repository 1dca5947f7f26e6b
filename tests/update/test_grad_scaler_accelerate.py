"""Accelerate's optimizer and scheduler wrappers around the drop-in: the real package."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

import halfstep as hs
from accelerate_state import fresh_accelerate
from snapshots import differences, snapshot

accelerate = pytest.importorskip("accelerate", reason="needs accelerate: pip install accelerate")

EPS = torch.finfo(torch.float32).eps
RUN = [(1.0, 2.0**10), (math.inf, 2.0**10), (1.0, 2.0**9), (1.0, 2.0**9)]  # factor, loss scale


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    with fresh_accelerate():
        yield


class Training:
    """A small model under FP16 autocast, a learning rate that halves with every update."""

    def __init__(self, options: dict[str, Any]) -> None:
        torch.manual_seed(0)
        self.model: nn.Module = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        self.optimizer: Any = AdamW(self.model.parameters(), lr=0.01, **options)
        self.schedule: Any = LambdaLR(self.optimizer, lambda step: 0.5**step)

    def loss(self, factor: float) -> Tensor:
        x = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
        with torch.autocast("cpu", torch.float16):
            output = self.model(x)
        return F.mse_loss(output.float(), torch.ones(32, 1)) * factor

    def rate(self) -> float:
        rate: float = self.optimizer.param_groups[0]["lr"]
        return rate


class AcceleratedTraining(Training):
    """The same, prepared by Accelerate. On a CPU it makes no scaler for FP16: one is put in."""

    def __init__(self, options: dict[str, Any], scaler: torch.amp.GradScaler) -> None:
        super().__init__(options)
        self.accelerator = accelerate.Accelerator(cpu=True)
        self.accelerator.scaler = scaler  # before prepare
        prepared = self.accelerator.prepare(self.model, self.optimizer, self.schedule)
        self.model, self.optimizer, self.schedule = prepared

    def step(self, factor: float) -> None:
        self.accelerator.backward(self.loss(factor))
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()


@pytest.mark.parametrize("options", [{}, {"fused": True}], ids=["default", "fused"])
def test_skipped_step_under_accelerate_moves_neither_weights_nor_schedule(
    options: dict[str, Any],
) -> None:
    scaler = hs.GradScaler("cpu", init_scale=2.0**10)
    training = AcceleratedTraining(options, scaler)
    training.step(1.0)
    assert not training.optimizer.step_was_skipped
    before, rate = snapshot(training.model, training.optimizer), training.rate()
    training.step(math.inf)
    assert training.optimizer.step_was_skipped
    assert differences(before, snapshot(training.model, training.optimizer)) == []
    assert training.rate() == rate == 0.005
    assert scaler.last_outcome is not None
    assert scaler.last_outcome.skipped
    assert scaler.get_scale() == 2.0**9


@pytest.mark.parametrize("options", [{}, {"fused": True}], ids=["default", "fused"])
def test_run_under_accelerate_equals_a_plain_loop(options: dict[str, Any]) -> None:
    # oracle: the good steps of the run in plain torch, scaled and unscaled by hand
    training = AcceleratedTraining(options, hs.GradScaler("cpu", init_scale=2.0**10))
    plain = Training({})
    for factor, scale in RUN:
        training.step(factor)
        if math.isfinite(factor):
            (plain.loss(factor) * scale).backward()
            for p in plain.model.parameters():
                assert p.grad is not None
                p.grad.div_(scale)
            plain.optimizer.step()
            plain.schedule.step()
            plain.optimizer.zero_grad()
    assert training.rate() == plain.rate() == 0.01 * 0.5**3
    for a, b in zip(plain.model.parameters(), training.model.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=32 * EPS, atol=32 * EPS)


def test_torchs_own_scaler_under_accelerate_moves_the_schedule_of_a_fused_optimizer() -> None:
    # what the drop-in mends: torch calls a fused optimizer on an overflow, and calls are counted
    training = AcceleratedTraining({"fused": True}, torch.amp.GradScaler("cpu", init_scale=2.0**10))
    training.step(1.0)
    weights = copy.deepcopy(list(training.model.parameters()))
    training.step(math.inf)
    assert all(map(torch.equal, weights, training.model.parameters()))
    assert not training.optimizer.step_was_skipped
    assert training.rate() == 0.0025
