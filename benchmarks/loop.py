"""The whole training step, forward to schedule: stock loops and halfstep, interleaved.

    python benchmarks/loop.py            # three models, about five minutes
    python benchmarks/loop.py --quick    # few rounds, nothing written

A BF16 MLP with fused AdamW, clipping and a LambdaLR. Every way to make a step has a process of its
own, as a training run has, and the processes take turns: in a round each makes fifty steps, in an
order that is drawn anew, while the others sleep. The table shows medians and quartiles of the
ratios *within* a round to a stock loop without a scaler, over three generations of processes.

In one process, six models with their gradients share a heap, and how often its top is given back to
the system and faulted in again decides more than the code does; the page faults per step stand in
the last column.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import resource
import statistics
import sys
import time
from collections.abc import Callable
from datetime import date
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

import halfstep as hs
from update import (  # type: ignore[import-not-found]  # the script beside this one
    busy_fraction,
    machine,
    quartiles,
)

BATCH, MAX_NORM = 64, 1.0
STEPS = 50  # of a process in a round
Step = Callable[[], object]


class Size(NamedTuple):
    """Of an MLP: linear layers, each a weight and a bias, and their width."""

    layers: int
    width: int

    def __str__(self) -> str:
        return f"{2 * self.layers} tensors of {self.width}"


SIZES = {Size(4, 256): 40, Size(4, 512): 20, Size(30, 256): 10}  # rounds


class Training:
    """One model with its optimizer, schedule and batch."""

    def __init__(self, size: Size) -> None:
        layers, width = size
        torch.manual_seed(0)
        parts: list[nn.Module] = []
        for _ in range(layers):
            parts += [nn.Linear(width, width), nn.ReLU()]
        self.model = nn.Sequential(*parts)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1.0)
        self.x, self.y = torch.randn(BATCH, width), torch.randn(BATCH, width)

    def loss(self) -> torch.Tensor:
        return F.mse_loss(self.model(self.x).float(), self.y)


def stock(size: Size) -> Step:
    """No scaler: what one writes for BF16."""
    t = Training(size)

    def step() -> None:
        t.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = t.loss()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(t.model.parameters(), MAX_NORM)
        t.optimizer.step()
        t.schedule.step()

    return step


def scaled(size: Size, scaler: Any, own_clip: bool = False) -> Step:
    """The stock sequence with a scaler."""
    t = Training(size)

    def step() -> None:
        t.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = t.loss()
        scaler.scale(loss).backward()
        if own_clip:
            scaler.clip_grad_norm_(t.optimizer, MAX_NORM)
        else:
            scaler.unscale_(t.optimizer)
            torch.nn.utils.clip_grad_norm_(t.model.parameters(), MAX_NORM)
        scaler.step(t.optimizer)
        scaler.update()
        t.schedule.step()

    return step


def engine_of(t: Training) -> hs.Engine:
    return hs.Engine(t.model, t.optimizer, precision="bf16", max_norm=MAX_NORM, schedule=t.schedule)


def by_hand(size: Size) -> Step:
    t = Training(size)
    engine = engine_of(t)

    def step() -> None:
        with engine.autocast():
            loss = t.loss()
        engine.backward(loss)
        engine.step()

    return step


def train_step(size: Size) -> Step:
    t = Training(size)
    engine = engine_of(t)
    return lambda: engine.train_step([None], lambda model, batch: t.loss())


WAYS: dict[str, Callable[[Size], Step]] = {
    "stock": stock,
    "halfstep by hand": by_hand,
    "halfstep train_step": train_step,
    "torch GradScaler": lambda size: scaled(size, torch.amp.GradScaler("cpu", init_scale=2.0**10)),
    "halfstep GradScaler": lambda size: scaled(size, hs.GradScaler("cpu", init_scale=2.0**10)),
    "halfstep GradScaler, its clip": lambda size: scaled(
        size, hs.GradScaler("cpu", init_scale=2.0**10), own_clip=True
    ),
}


def serve(name: str, size: Size, asked: Connection) -> None:
    """Make as many steps as asked for, and answer with the seconds and page faults they took."""
    step = WAYS[name](size)
    while count := asked.recv():
        step()  # wakes the threads
        faults, start = page_faults(), time.perf_counter()
        for _ in range(count):
            step()
        asked.send((time.perf_counter() - start, page_faults() - faults))


def page_faults() -> int:
    """Of this process, those that read nothing from the disk."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


Rounds = dict[str, list[tuple[float, float]]]


def generation(size: Size, rounds: int, seed: int) -> Rounds:
    """Seconds and page faults per step of every way, round by round, each in a new process."""
    context = multiprocessing.get_context("spawn")
    ends, processes = {}, []
    for name in WAYS:
        ends[name], other = context.Pipe()
        processes.append(context.Process(target=serve, args=(name, size, other), daemon=True))
        processes[-1].start()
    found: Rounds = {name: [] for name in WAYS}
    order = list(WAYS)
    shuffle = random.Random(seed).shuffle
    for turn in range(rounds + 2):
        shuffle(order)
        for name in order:
            ends[name].send(STEPS)
            seconds, faults = ends[name].recv()
            if turn >= 2:
                found[name].append((seconds / STEPS, faults / STEPS))
    for end, process in zip(ends.values(), processes, strict=True):
        end.send(0)
        process.join()
    return found


def measure(size: Size, rounds: int, generations: int) -> dict[str, Any]:
    """Ratios to the stock loop, and of the two scalers to each other."""
    every: Rounds = {name: [] for name in WAYS}
    for seed in range(generations):
        for name, pairs in generation(size, rounds, seed).items():
            every[name] += pairs
    times = {name: [seconds for seconds, _ in pairs] for name, pairs in every.items()}
    found: dict[str, Any] = {"stock_ms": round(statistics.median(times["stock"]) * 1e3, 3)}
    found["page_faults"] = {
        name: round(statistics.median(faults for _, faults in pairs), 1)
        for name, pairs in every.items()
    }
    for name, seconds in times.items():
        if name != "stock":
            found[f"{name} over stock"] = quartiles(seconds, times["stock"])
    found["halfstep GradScaler over torch GradScaler"] = quartiles(
        times["halfstep GradScaler"], times["torch GradScaler"]
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="few rounds, nothing written")
    parser.add_argument("--force", action="store_true", help="run on a busy machine too")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    busy = busy_fraction()
    if busy > 0.2 and not options.force:
        sys.exit(f"other processes use {busy:.0%} of the cores; wait, or give --force")
    results: dict[str, Any] = {
        "date": date.today().isoformat(),
        **machine(),
        "command": "python benchmarks/loop.py",
        "busy": round(busy, 3),
    }
    print(f"{results['cpu']}, {results['threads']} threads, torch {results['torch']}")
    for size, rounds in SIZES.items():
        quick = options.quick
        row = measure(size, 2 if quick else rounds, generations=1 if quick else 3)
        results[str(size)] = row
        print(f"\n{size} (stock {row['stock_ms']:.2f} ms)")
        for key, value in row.items():
            if isinstance(value, list):
                low, median, high = value
                faults = row["page_faults"].get(key.removesuffix(" over stock"), "")
                print(f"  {key:45} {median:6.3f}   [{low:.3f}, {high:.3f}]   {faults:>7}")
    if options.quick:
        return
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"{results['date']}-loop-cpu.json"
    path.write_text(json.dumps(results, indent=2) + "\n")
    print(f"\nwritten to {os.path.relpath(path)}")


if __name__ == "__main__":
    main()
