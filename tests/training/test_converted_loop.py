"""A converted loop is the stock loop, bit for bit in FP32."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import halfstep as hs

MAKERS: dict[str, Any] = {
    "SGD": lambda p, **k: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, **k),
    "AdamW": lambda p, **k: torch.optim.AdamW(p, lr=0.01, **k),
}


def make(kind: str, fused: bool) -> tuple[nn.Sequential, torch.optim.Optimizer, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.BatchNorm1d(16), nn.Linear(16, 4))
    optimizer = MAKERS[kind](model.parameters(), **({"fused": True} if fused else {}))
    return model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(8, 8, generator=generator), torch.randint(0, 4, (8,), generator=generator))
        for _ in range(12)
    ]


def stock(kind: str, fused: bool, accumulate: int) -> nn.Module:
    model, optimizer, schedule = make(kind, fused)
    for number, (x, y) in enumerate(batches(), start=1):
        (F.cross_entropy(model(x), y) / accumulate).backward()
        if number % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    return model


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("loss_scale", ["auto", 1024.0])
@pytest.mark.parametrize("by_hand", [True, False])
def test_converted_loop_equals_the_stock_loop_bit_for_bit(
    kind: str, fused: bool, accumulate: int, loss_scale: Any, by_hand: bool
) -> None:
    model, optimizer, schedule = make(kind, fused)
    engine = hs.Engine(
        model, optimizer, precision="fp32", loss_scale=loss_scale, schedule=schedule, fuse=False
    )
    if by_hand:
        for number, (x, y) in enumerate(batches(), start=1):
            with engine.autocast():
                loss = F.cross_entropy(model(x), y)
            engine.backward(loss)
            if number % accumulate == 0:
                engine.step()
    else:
        for window in hs.micro_batches(batches(), accumulate):
            engine.train_step(window, lambda m, b: F.cross_entropy(m(b[0]), b[1]))
    oracle = stock(kind, fused, accumulate).state_dict()
    assert all(torch.equal(value, oracle[name]) for name, value in model.state_dict().items())
