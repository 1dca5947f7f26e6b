"""Recipes whose batches come as real programs make them, and what a run of one saw."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from small_recipes import small
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    WeightedRandomSampler,
)

import halfstep as hs

SIZE, BATCH = 7, 2
PASS = 4  # batches in a pass, the last one half as large


class Rows(Dataset[Tensor]):
    """Row n is n everywhere, so that a batch names its rows; the last column may be noise."""

    def __init__(self, noise: str = "") -> None:
        self.noise = noise

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Tensor:
        row = torch.full((4,), float(index))
        if self.noise == "torch":
            row[3] = torch.rand(())
        elif self.noise == "python":
            row[3] = random.random()
        elif self.noise == "numpy":
            row[3] = float(np.random.rand())
        return row


class Shuffled(Sampler[int]):
    """A sampler with a generator of its own."""

    def __init__(self) -> None:
        self.own = torch.Generator().manual_seed(5)

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(SIZE, generator=self.own).tolist()

    def __len__(self) -> int:
        return SIZE


class Stream(IterableDataset[Tensor]):
    """Rows in an order that each pass takes from Python's generator."""

    def __iter__(self) -> Iterator[Tensor]:
        for index in random.sample(range(SIZE), SIZE):
            yield torch.full((4,), float(index))


class Anew:
    """An object that can be iterated again, in another order each time."""

    def __init__(self) -> None:
        self.order = np.random.default_rng(3)

    def __iter__(self) -> Iterator[Tensor]:
        for index in self.order.permutation(SIZE):
            yield torch.full((1, 4), float(index))


class Restarting:
    """An iterator with a length, whose `iter` starts again, as some loaders are made."""

    def __len__(self) -> int:
        return PASS

    def __iter__(self) -> Restarting:
        self.order = torch.randperm(PASS).tolist()
        return self

    def __next__(self) -> Tensor:
        if not self.order:
            raise StopIteration
        return torch.full((1, 4), float(self.order.pop()))


def loader(**settings: Any) -> DataLoader[Tensor]:
    noise = settings.pop("noise", "")
    return DataLoader(settings.pop("dataset", Rows(noise)), **{"batch_size": BATCH, **settings})


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(11)


def reservoir() -> Iterator[Tensor]:
    """A shuffle buffer: what comes out depends on every number drawn before."""
    held: list[int] = []
    for index in range(3 * SIZE):
        held.append(index)
        if len(held) > 4:
            yield torch.full((1, 4), float(held.pop(random.randrange(len(held)))))


def from_outside() -> Callable[[], Any]:
    made = loader(shuffle=True, generator=seeded())
    return lambda: made


def generator_from_outside() -> Callable[[], Any]:
    made = seeded()

    def batches() -> Iterator[Tensor]:
        for _ in range(PASS):
            yield torch.rand(1, 4, generator=made)

    return batches


def endless() -> Iterator[Tensor]:
    while True:
        yield torch.rand(2, 4)


def eager() -> list[Tensor]:
    return [torch.full((1, 4), float(n)) for n in torch.randperm(PASS).tolist()]


def distributed() -> DataLoader[Tensor]:
    sampler = DistributedSampler(Rows(), num_replicas=2, rank=1, shuffle=True, seed=3)
    return loader(sampler=sampler, batch_size=1)


# name -> what makes a fresh `batches`, as a fresh process would
SOURCES: dict[str, Callable[[], Callable[[], Any]]] = {
    "sequential": lambda: loader,
    "shuffled": lambda: lambda: loader(shuffle=True),
    "generator inside": lambda: lambda: loader(shuffle=True, generator=seeded()),
    "loader from outside": from_outside,
    "generator from outside": generator_from_outside,
    "noise of torch": lambda: lambda: loader(shuffle=True, noise="torch"),
    "noise of python": lambda: lambda: loader(shuffle=True, noise="python"),
    "noise of numpy": lambda: lambda: loader(shuffle=True, noise="numpy"),
    "with replacement": lambda: (
        lambda: loader(sampler=RandomSampler(Rows(), replacement=True, generator=seeded()))
    ),
    "weighted": lambda: lambda: loader(sampler=WeightedRandomSampler([1.0] * SIZE, SIZE)),
    "own sampler": lambda: lambda: loader(sampler=Shuffled()),
    "batch sampler": lambda: (
        lambda: DataLoader(Rows(), batch_sampler=BatchSampler(Shuffled(), BATCH, False))
    ),
    "distributed": lambda: distributed,
    "iterable dataset": lambda: lambda: loader(dataset=Stream()),
    "list": lambda: lambda: [torch.full((2, 4), float(n)) for n in range(PASS)],
    "eager list": lambda: eager,
    "own object": lambda: Anew,
    "restarting": lambda: Restarting,
    "shuffle buffer": lambda: reservoir,
    "endless": lambda: endless,
    "iterator of a loader": lambda: lambda: iter(loader(shuffle=True)),
}


def dropout_and_linear() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))


def recipe_of(batches: Callable[[], Any], seen: list[Tensor], **changes: Any) -> hs.Recipe:
    """Adds each batch that its loss function gets to `seen`; dropout draws random numbers."""

    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        seen.append(batch.clone())
        return torch.as_tensor(model(batch).float().square().mean())

    return small(model=dropout_and_linear, loss_fn=loss_fn, batches=batches, **changes)


def disturb() -> None:
    """Move the global generators, as another program would have left them."""
    torch.manual_seed(99)
    random.seed(99)
    np.random.seed(99)
