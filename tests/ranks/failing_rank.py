"""One of two ranks, for `test_failures`: trains, and at a step rank 1 does what it was told.

``python failing_rank.py WHAT RANK PORT FOLDER``
"""

from __future__ import annotations

import datetime
import os
import signal
import sys
import time
from pathlib import Path

import agreement_cases as cases
import torch
import torch.distributed as dist
from torch import Tensor, nn

import halfstep as hs

STEPS, BAD_STEP = 6, 3


def loss_fn(what: str, rank: int, step: int, model: nn.Module, x: Tensor) -> Tensor:
    if rank == 1 and step == BAD_STEP:
        if what in ("raises", "raises under fsdp", "swallows"):
            raise ValueError("this batch is odd")
        if what == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "is late":
            time.sleep(5)
        if what == "stays away":
            time.sleep(60)
    return cases.mean_loss(model, x)


def train(what: str, rank: int) -> list[Tensor]:
    model = cases.fsdp() if "fsdp" in what else cases.ddp()
    engine = cases.engine_of(model, max_norm=1.0)
    for step in range(STEPS):
        x = cases.rows(rank, 4, step)
        if what == "raises outside" and rank == 1 and step == BAD_STEP:
            raise KeyError("a column is missing")
        try:
            engine.train_step([x], lambda m, x, s=step: loss_fn(what, rank, s, m, x))
        except ValueError:
            if what != "swallows":
                raise
    return cases.weights(model)


def main(what: str, rank: int, port: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=dist.TCPStore("localhost", port, is_master=False),  # the test's, as torchrun's
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(seconds=12),
    )
    try:
        result: object = train(what, rank)
    except hs.HalfstepError as error:
        result = f"{type(error).__name__}: {error}"
    torch.save(result, folder / f"{rank}.pt")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
