"""Train a sharded model (FSDP2), save it on all ranks, and load it into a model in one piece.

Run with ``torchrun --nproc-per-node 2 examples/fsdp.py`` (a CPU is enough). Started with
``python examples/fsdp.py`` it says so.
"""

from __future__ import annotations

import datetime
import gc
import os
import sys
import tempfile

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import halfstep as hs

WIDTH = 16


def build() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU()),
        nn.Sequential(nn.Linear(64, 64), nn.GELU()),
        nn.Linear(64, 1),
    )


def batch(rank: int, step: int) -> Tensor:
    """More rows on one rank than on the other."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(8 + 8 * rank, WIDTH, generator=generator)


def loss_fn(model: nn.Module, x: Tensor) -> hs.LossSum:
    error = model(x).float().squeeze(1) - x.sum(1).tanh()
    return hs.LossSum(error.square().sum(), len(x))


def train(folder: str) -> Tensor:
    """Train and save on all ranks; returns what the averaged weights say about a batch."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = build()
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)  # after fully_shard
    engine = hs.Engine(model, optimizer, precision="bf16", max_norm=1.0, ema=0.9)
    rank = engine.ranks.rank
    for step in range(60):
        outcome = engine.train_step([batch(rank, step)], loss_fn)
        if rank == 0 and step % 20 == 19:
            print(f"step {step + 1}: loss={outcome.loss:.4f} norm={outcome.grad_norm:.3f}")
    hs.save_checkpoint(f"{folder}/run", engine)  # called by every rank
    with engine.averaged(), torch.no_grad():  # for an evaluation
        answer: Tensor = model(batch(0, 0)).float()
    return answer


def compare(folder: str, sharded: Tensor) -> None:
    """Load the checkpoint into a model in one piece."""
    model = build()
    engine = hs.Engine(model, torch.optim.AdamW(model.parameters()), precision="bf16", ema=0.9)
    hs.load_checkpoint(f"{folder}/run", engine)
    assert engine.ema is not None
    error = (engine.ema(batch(0, 0)) - sharded).abs().max()
    print(f"loaded into one process: {engine.num_updates} updates, differs by {error:.1e}")


def main() -> None:
    if "RANK" not in os.environ:
        sys.exit("start this by: torchrun --nproc-per-node 2 examples/fsdp.py")
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    rank, folder = dist.get_rank(), dist_folder()
    answer = train(folder)
    gc.collect()  # the model holds groups of its mesh, which gloo wants to see closed in time
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        compare(folder, answer)


def dist_folder() -> str:
    """One temporary folder for all ranks."""
    names: list[str | None] = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(names, src=0)
    return str(names[0])


if __name__ == "__main__":
    main()
