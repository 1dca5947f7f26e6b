"""The whole training step, forward to schedule: stock loops and halfstep, interleaved.

    python benchmarks/loop.py            # two models, about two minutes
    python benchmarks/loop.py --quick    # few rounds, nothing written

A BF16 MLP with fused AdamW, clipping and a LambdaLR. Every round runs each way once, in an order
that is drawn anew, and the table shows medians and quartiles of the ratios *within* a round to a
stock loop without a scaler.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import halfstep as hs
from update import (  # type: ignore[import-not-found]  # the script beside this one
    busy_fraction,
    machine,
    quartiles,
)

WIDTH, BATCH, MAX_NORM = 256, 64, 1.0
MODELS = {"8 tensors": 4, "60 tensors": 30}  # layers, each a weight and a bias
Step = Callable[[], object]


class Training:
    """One model with its optimizer, schedule and batch."""

    def __init__(self, layers: int) -> None:
        torch.manual_seed(0)
        parts: list[nn.Module] = []
        for _ in range(layers):
            parts += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
        self.model = nn.Sequential(*parts)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1.0)
        self.x, self.y = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)

    def loss(self) -> torch.Tensor:
        return F.mse_loss(self.model(self.x).float(), self.y)


def stock(layers: int) -> Step:
    """No scaler: what one writes for BF16."""
    t = Training(layers)

    def step() -> None:
        t.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = t.loss()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(t.model.parameters(), MAX_NORM)
        t.optimizer.step()
        t.schedule.step()

    return step


def scaled(layers: int, scaler: Any, own_clip: bool = False) -> Step:
    """The stock sequence with a scaler."""
    t = Training(layers)

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


def by_hand(layers: int) -> Step:
    t = Training(layers)
    engine = engine_of(t)

    def step() -> None:
        with engine.autocast():
            loss = t.loss()
        engine.backward(loss)
        engine.step()

    return step


def train_step(layers: int) -> Step:
    t = Training(layers)
    engine = engine_of(t)
    return lambda: engine.train_step([None], lambda model, batch: t.loss())


def ways(layers: int) -> dict[str, Step]:
    """Every way to make a step, each over a model of its own."""
    return {
        "stock": stock(layers),
        "halfstep by hand": by_hand(layers),
        "halfstep train_step": train_step(layers),
        "torch GradScaler": scaled(layers, torch.amp.GradScaler("cpu", init_scale=2.0**10)),
        "halfstep GradScaler": scaled(layers, hs.GradScaler("cpu", init_scale=2.0**10)),
        "halfstep GradScaler, its clip": scaled(
            layers, hs.GradScaler("cpu", init_scale=2.0**10), own_clip=True
        ),
    }


def measure(layers: int, rounds: int) -> dict[str, Any]:
    """Ratios to the stock loop, and of the two scalers to each other."""
    steps = ways(layers)
    times: dict[str, list[float]] = {name: [] for name in steps}
    order = list(steps)
    shuffle = random.Random(0).shuffle
    for turn in range(rounds + 5):
        shuffle(order)
        for name in order:
            start = time.perf_counter()
            steps[name]()
            if turn >= 5:
                times[name].append(time.perf_counter() - start)
    found: dict[str, Any] = {"stock_ms": round(statistics.median(times["stock"]) * 1e3, 3)}
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
    for title, layers in MODELS.items():
        rounds = 10 if options.quick else 600 if layers < 10 else 200
        row = measure(layers, rounds)
        results[title] = row
        print(f"\n{title} of {WIDTH} (stock {row['stock_ms']:.2f} ms)")
        for key, value in row.items():
            if isinstance(value, list):
                low, median, high = value
                print(f"  {key:45} {median:6.3f}   [{low:.3f}, {high:.3f}]")
    if options.quick:
        return
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"{results['date']}-loop-cpu.json"
    path.write_text(json.dumps(results, indent=2) + "\n")
    print(f"\nwritten to {os.path.relpath(path)}")


if __name__ == "__main__":
    main()
