"""The drop-in and vetoes on a CUDA device: torch's numbers, and the host never waits."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW

import halfstep as hs

pytestmark = pytest.mark.gpu

EPS = torch.finfo(torch.float32).eps


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to("cuda")


def make_batches(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(5, 8, generator=generator).to("cuda") for _ in range(count)]


def mean_loss(model: nn.Module, x: Tensor) -> Tensor:
    loss: Tensor = model(x).float().square().mean()
    return loss


def set_sync_debug_mode(mode: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says once that the mode is a prototype
        torch.cuda.set_sync_debug_mode(mode)


def run(scaler: Any, dtype: torch.dtype, options: dict[str, bool]) -> tuple[list[Tensor], float]:
    model = make_model()
    optimizer = AdamW(model.parameters(), lr=1e-3, **options)
    for number, x in enumerate(make_batches(6)):
        with torch.autocast("cuda", dtype):
            loss = mean_loss(model, x)
        scaler.scale(loss * (math.inf if number == 2 else 1.0)).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return [p.detach().cpu() for p in model.parameters()], scaler.get_scale()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}], ids=["fused", "foreach"])
def test_drop_in_makes_the_updates_of_torchs_class(
    options: dict[str, bool], dtype: torch.dtype
) -> None:
    # oracle: torch's own class in the same loop
    wanted, scale = run(torch.amp.GradScaler("cuda"), dtype, options)
    found, ours = run(hs.GradScaler("cuda"), dtype, options)
    assert ours == scale == 2.0**15
    for a, b in zip(wanted, found, strict=True):
        assert torch.allclose(a, b, rtol=64 * EPS, atol=64 * EPS)


def test_step_of_the_drop_in_causes_no_host_sync() -> None:
    model = make_model()
    optimizer = AdamW(model.parameters(), fused=True)
    scaler = hs.GradScaler("cuda")
    for number, x in enumerate(make_batches(4)):
        scaler.scale(mean_loss(model, x)).backward()
        set_sync_debug_mode("error" if number else "default")  # the first step makes state
        try:
            scaler.clip_grad_norm_(optimizer, 0.1)
            scaler.step(optimizer)
            scaler.update()
        finally:
            set_sync_debug_mode("default")
        optimizer.zero_grad()
    assert scaler.last_outcome is not None
    assert scaler.last_outcome.updated


def test_veto_on_the_device_holds_the_step_and_nothing_moves() -> None:
    # closed form: a loss a million times larger has a norm far above six times the mean
    model = make_model()
    optimizer = AdamW(model.parameters(), fused=True)
    engine = hs.Engine(
        model, optimizer, precision="fp32", veto=hs.veto.norm_spike(6, warmup=2), loss_scale=4.0
    )
    for x in make_batches(4):
        assert engine.train_step([x], mean_loss).updated
    before = [p.detach().cpu() for p in model.parameters()]
    x = make_batches(1)[0]
    loss = mean_loss(model, x) * 1e6
    engine.backward(loss)
    set_sync_debug_mode("error")
    try:
        outcome = engine.step()
    finally:
        set_sync_debug_mode("default")
    assert (outcome.updated, outcome.reason) == (False, "veto: norm_spike")
    assert outcome.next_loss_scale == outcome.loss_scale == 4.0
    for p, kept in zip(model.parameters(), before, strict=True):
        assert torch.equal(p.detach().cpu(), kept)
    assert engine.train_step([x], mean_loss).updated
