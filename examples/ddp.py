"""Train under DistributedDataParallel, with unequal numbers of tokens on the ranks.

Run with ``torchrun --nproc-per-node 2 examples/ddp.py`` (a CPU is enough), or with
``python examples/ddp.py`` in one process: nothing but the number of ranks changes.
"""

from __future__ import annotations

import datetime
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import halfstep as hs

PADDING, CLASSES, WIDTH = -100, 4, 16


def dataset() -> TensorDataset:
    """Points of four classes; every third label is missing."""
    generator = torch.Generator().manual_seed(0)
    centers = 2 * torch.randn(CLASSES, WIDTH, generator=generator)
    labels = torch.randint(CLASSES, (512,), generator=generator)
    points = centers[labels] + torch.randn(512, WIDTH, generator=generator)
    labels[::3] = PADDING
    return TensorDataset(points, labels)


def loss_fn(model: nn.Module, batch: list[Tensor]) -> hs.LossSum:
    x, y = batch
    total = cross_entropy(model(x).float(), y, reduction="sum", ignore_index=PADDING)
    return hs.LossSum(total, (y != PADDING).sum())


def main() -> None:
    several = "RANK" in os.environ  # set by torchrun
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, CLASSES))
    data, sampler = dataset(), None
    if several:
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
        model = DistributedDataParallel(model)
        sampler = DistributedSampler(data)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    engine = hs.Engine(model, optimizer, precision="bf16", max_norm=1.0)
    loader = DataLoader(data, batch_size=32, sampler=sampler, shuffle=sampler is None)
    for epoch in range(4):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for window in hs.micro_batches(loader, per_update=2):
            outcome = engine.train_step(window, loss_fn)
        if engine.ranks.rank == 0:  # all have the same numbers; one prints them
            print(f"epoch {epoch}: loss={outcome.loss:.4f} tokens={engine.consumed:.0f}")
    if several:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
