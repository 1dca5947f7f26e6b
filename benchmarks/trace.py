"""Tracing a forward and backward pass: plain, watched, traced, and under detect_anomaly, in turn.

    python benchmarks/trace.py             # a Transformer of width 512, and how the cost grows
    python benchmarks/trace.py --cpu-time  # one thread and its own clock: for a busy machine
    python benchmarks/trace.py --quick     # few rounds, nothing written

Every round times each contestant once, in turn, and the table shows medians and quartiles of the
ratios *within* a round. The second part makes the model deeper (cost per op) and measures what one
op of a trace takes in memory.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import sys
import time
import tracemalloc
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import date
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import halfstep as hs

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.update import busy_fraction, machine, quartiles

WIDTH, HEADS, CONTEXT, BATCH, VOCABULARY = 512, 8, 128, 4, 1000


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(x.shape))
        return x + torch.as_tensor(self.mlp(self.norm2(x)))


class Transformer(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(layers)))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        return torch.as_tensor(self.head(self.blocks(self.token(ids))))


def make_step(layers: int) -> tuple[nn.Module, Callable[[], None]]:
    torch.manual_seed(0)
    model = Transformer(layers)
    ids, targets = torch.randint(VOCABULARY, (2, BATCH, CONTEXT))

    def step() -> None:
        for p in model.parameters():
            p.grad = None
        F.cross_entropy(model(ids).flatten(0, 1), targets.flatten()).backward()  # type: ignore[no-untyped-call]

    return model, step


def measure(layers: int, rounds: int, clock: Callable[[], float]) -> dict[str, Any]:
    """Milliseconds of the plain pass and ratios to it."""
    model, step = make_step(layers)
    contexts: dict[str, Callable[[], AbstractContextManager[object]]] = {
        "plain": contextlib.nullcontext,
        "watch": lambda: hs.watch(model),
        "trace": lambda: hs.trace(model),
        "detect_anomaly": lambda: torch.autograd.detect_anomaly(check_nan=True),
        "trace, level full": lambda: hs.trace(model, level="full"),
    }
    times: dict[str, list[float]] = {name: [] for name in contexts}
    for number in range(rounds + 2):
        for name, context in contexts.items():
            with context():
                start = clock()
                step()
                seconds = clock() - start
            if number >= 2:
                times[name].append(seconds)
    with hs.trace(model) as traced:
        step()
    return {
        "plain_ms": round(sorted(times["plain"])[rounds // 2] * 1e3, 1),
        "ops": len(traced.record.ops),
        **{
            f"{name}_over_plain": quartiles(found, times["plain"])
            for name, found in times.items()
            if name != "plain"
        },
    }


def bytes_per_op(layers: int) -> int:
    """What the record of a trace holds, as Python counts it, per op."""
    model, step = make_step(layers)
    with hs.trace(model) as traced:  # warm caches
        step()
    del traced
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    with hs.trace(model) as traced:
        step()
    for p in model.parameters():
        p.grad = None
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return round((after - before) / len(traced.record.ops))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="few rounds, nothing written")
    parser.add_argument("--cpu-time", action="store_true", help="thread time, one thread")
    parser.add_argument("--force", action="store_true", help="run on a busy machine too")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="Anomaly Detection")
    busy = busy_fraction()
    clock = time.thread_time if options.cpu_time else time.perf_counter
    if options.cpu_time:
        torch.set_num_threads(1)
    elif busy > 0.2 and not options.force:
        sys.exit(f"other processes use {busy:.0%} of the cores; wait, or give --force")
    results: dict[str, Any] = {
        "date": date.today().isoformat(),
        **machine(),
        "command": f"python benchmarks/trace.py{' --cpu-time' if options.cpu_time else ''}",
        "busy": round(busy, 3),
    }
    print(f"{results['cpu']}, {results['threads']} threads, torch {results['torch']}")
    for layers in (1, 6, 12):
        row = measure(layers, 3 if options.quick else 16 if layers == 6 else 6, clock)
        results[f"{layers} layers"] = row
        print(f"\nwidth {WIDTH}, {layers} layers: {row['ops']} ops, plain {row['plain_ms']} ms")
        for key, value in row.items():
            if isinstance(value, list):
                low, median, high = value
                print(f"  {key.replace('_', ' '):32} {median:6.3f}   [{low:.3f}, {high:.3f}]")
    results["bytes_per_op"] = bytes_per_op(6)
    print(f"\nmemory of a trace: {results['bytes_per_op']} bytes per op")
    if options.quick:
        return
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"{results['date']}-trace-cpu.json"
    path.write_text(json.dumps(results, indent=2) + "\n")
    print(f"\nwritten to {os.path.relpath(path)}")


if __name__ == "__main__":
    main()
