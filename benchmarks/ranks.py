"""The whole training step on two processes: stock DDP and FSDP2 loops and halfstep, interleaved.

    python benchmarks/ranks.py            # about three minutes
    python benchmarks/ranks.py --quick    # few rounds, nothing written

Two processes with gloo on this machine. All ways to make a step live in the same pair and take
turns: in a round each makes five windows, in an order that is drawn anew. The table shows medians
and quartiles of the ratios *within* a round to the stock loop: torch's wrapper,
`torch.amp.GradScaler`, `clip_grad_norm_`, fused AdamW. The stock loops exchange gradients at
every micro-batch, as they are written; "no_sync" is a stock loop that does it once per window by
hand.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import halfstep as hs
from update import machine, quartiles  # type: ignore[import-not-found]  # the script beside it

TIMEOUT = timedelta(seconds=120)
WORLD, LAYERS, WIDTH, BATCH = 2, 8, 384, 32
WINDOWS = 5  # of a way in a round
ROUNDS = {"ddp": 30, "fsdp": 12}
Step = Callable[[], object]


def model_of(kind: str) -> nn.Module:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS)]
    model = nn.Sequential(*blocks)
    if kind == "ddp":
        return DistributedDataParallel(model, gradient_as_bucket_view=True)
    mesh = init_device_mesh("cpu", (WORLD,))
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def loss_fn(model: nn.Module, x: Tensor) -> Tensor:
    loss: Tensor = model(x).square().mean()
    return loss


def stock(kind: str, window: list[Tensor], *, once: bool) -> Step:
    model = model_of(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=kind == "ddp")
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)

    def exchanged(is_last: bool) -> contextlib.AbstractContextManager[object]:
        if not once or is_last:
            if kind == "fsdp":
                model.set_requires_gradient_sync(True)  # type: ignore[operator]
            return contextlib.nullcontext()
        if kind == "ddp":
            return model.no_sync()  # type: ignore[operator, no-any-return]
        model.set_requires_gradient_sync(False)  # type: ignore[operator]
        return contextlib.nullcontext()

    def step() -> None:
        for number, x in enumerate(window):
            with exchanged(number == len(window) - 1):
                scaler.scale(loss_fn(model, x) / len(window)).backward()  # type: ignore[no-untyped-call]
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return step


def ours(kind: str, window: list[Tensor]) -> Step:
    model = model_of(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scale = hs.DynamicLossScale(2.0**10)
    engine = hs.Engine(model, optimizer, precision="fp32", loss_scale=scale, max_norm=1.0)
    batches = hs.Window(window)
    return lambda: engine.train_step(batches, loss_fn)


def drop_in(kind: str, window: list[Tensor]) -> Step:
    model = model_of(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    scaler = hs.GradScaler("cpu", init_scale=2.0**10)

    def step() -> None:
        for x in window:
            scaler.scale(loss_fn(model, x) / len(window)).backward()
        scaler.clip_grad_norm_(optimizer, 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return step


def measured(kind: str, size: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each way, by round."""
    window = [torch.randn(BATCH, WIDTH) for _ in range(size)]
    ways = {
        "stock": stock(kind, window, once=False),
        "no_sync": stock(kind, window, once=True),
        "halfstep": ours(kind, window),
        "drop-in": drop_in(kind, window),
    }
    for step in ways.values():
        for _ in range(5):
            step()
    order = random.Random(0)  # the same on both ranks
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        names = list(ways)
        order.shuffle(names)
        for name in names:
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(WINDOWS):
                ways[name]()
            found[name].append(time.perf_counter() - begin)
    return found


def work(rank: int, store: str, quick: bool, results: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD, timeout=TIMEOUT
    )
    for kind in ("ddp", "fsdp"):
        for size in (1, 4):
            found = measured(kind, size, 4 if quick else ROUNDS[kind])
            if rank == 0:
                results.put((kind, size, found))
    dist.barrier()
    os._exit(0)  # gloo may abort at the exit of a process whose models hold groups of their own


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds, nothing written")
    quick = parser.parse_args().quick
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (f"{folder}/store", quick, results)
        pair = [context.Process(target=work, args=(rank, *arguments)) for rank in range(WORLD)]
        for process in pair:
            process.start()
        rows = [results.get() for _ in range(4)]
        for process in pair:
            process.join()
    table = []
    for kind, size, found in rows:
        base = found["stock"]
        print(f"{kind}, {size} micro-batches: stock {statistics.median(base) / WINDOWS:.4f} s")
        for name in ("no_sync", "halfstep", "drop-in"):
            low, middle, high = quartiles(found[name], base)
            print(f"  {name:10} {middle:.3f} of stock ({low:.3f} to {high:.3f})")
            row = {"kind": kind, "micro_batches": size, "way": name}
            table.append({**row, "low": low, "median": middle, "high": high})
    if not quick:
        place = Path(__file__).parent / "results" / f"{date.today()}-ranks.json"
        place.write_text(
            json.dumps(
                {
                    "machine": {**machine(), "command": "python benchmarks/ranks.py"},
                    "ratios": table,
                },
                indent=1,
            )
            + "\n"
        )


if __name__ == "__main__":
    main()
