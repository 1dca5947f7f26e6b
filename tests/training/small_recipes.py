"""A regression of four inputs that trains in microseconds, and what its loss function saw."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import halfstep as hs


class Batch(NamedTuple):
    x: Tensor
    y: Tensor


def data(count: int = 3) -> list[Batch]:
    """`count` batches of different sizes, the same at every call."""
    generator = torch.Generator().manual_seed(1)
    x = [torch.randn(4 + n, 4, generator=generator) for n in range(count)]
    return [Batch(rows, rows.sum(1, keepdim=True)) for rows in x]


def squares(model: nn.Module, batch: Batch) -> hs.LossSum:
    return hs.LossSum((model(batch.x) - batch.y).float().square().sum(), len(batch.x))


def model_with_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01)


SMALL = hs.Recipe(
    name="small",
    model=model_with_dropout,
    loss_fn=squares,
    batches=data,
    optimizer=sgd,
    unit="samples",
)


def small(**changes: Any) -> hs.Recipe:
    return dataclasses.replace(SMALL, **changes)


def watched(look: Callable[[nn.Module, Batch], None], **changes: Any) -> hs.Recipe:
    """The small recipe whose loss function calls `look` first."""

    def loss_fn(model: nn.Module, batch: Batch) -> hs.LossSum:
        look(model, batch)
        return squares(model, batch)

    return small(loss_fn=loss_fn, **changes)


def nan_from(first: int) -> Callable[[], Iterator[Batch]]:
    """Endless batches; those from index `first` on hold NaN."""

    def batches() -> Iterator[Batch]:
        number = 0
        while True:
            for batch in data():
                factor = float("nan") if number >= first else 1.0
                yield Batch(batch.x * factor, batch.y)
                number += 1

    return batches
