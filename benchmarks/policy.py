"""What a precision policy costs beside stock autocast, interleaved.

    python benchmarks/policy.py            # about a minute
    python benchmarks/policy.py --quick    # few rounds, nothing written

Every round times each contestant once, in turn. Three questions:

* entering and leaving a policy that was used before, over `torch.autocast`;
* a touched op under CUDA's policy on a CPU, beyond the same op with the cast written by hand, in
  microseconds, on 8 x 8 values where the dispatch is all that counts; and what a listed op costs
  under stock autocast once a kernel of ours is there;
* forward and backward of the `lm` recipe under an empty policy, over stock autocast.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import halfstep as hs
from halfstep.recipes.lm import build as lm

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.update import busy_fraction, machine, quartiles

CALLS = 200  # per timing: one call is too short for the clock
FP16, FP32 = torch.float16, torch.float32
Way = Callable[[], object]


def interleaved(ways: dict[str, Way], rounds: int, calls: int) -> dict[str, list[float]]:
    """Microseconds per call, by round."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 2):
        for name, way in ways.items():
            start = time.perf_counter()
            for _ in range(calls):
                way()
            if turn >= 2:
                found[name].append((time.perf_counter() - start) / calls * 1e6)
    return found


def contexts(rounds: int) -> dict[str, Any]:
    """Enter and leave, construction included, as loops write it."""
    policies = {"empty": hs.Policy("fp16"), "cuda": hs.Policy("fp16", base="cuda")}

    def stock() -> None:
        with torch.autocast("cpu", dtype=FP16):
            pass

    def ours(policy: hs.Policy) -> Way:
        def enter() -> None:
            with policy.autocast("cpu"):
                pass

        return enter

    ways: dict[str, Way] = {"stock": stock, **{n: ours(p) for n, p in policies.items()}}
    times = interleaved(ways, rounds, CALLS)
    return {
        "stock_us": round(statistics.median(times["stock"]), 2),
        **{f"{n}_over_stock": quartiles(times[n], times["stock"]) for n in policies},
    }


def ops() -> dict[str, tuple[Way, Way]]:
    """Each op as a model writes it, and with the cast by hand (outside of autocast)."""
    h, w, b = torch.randn(8, 8).to(FP16), torch.ones(8), torch.zeros(8)
    m, v = torch.randn(8, 8), torch.randn(8)
    return {
        "softmax": (lambda: torch.softmax(h, -1), lambda: torch.softmax(h, -1, dtype=FP32)),
        "log_softmax": (
            lambda: torch.log_softmax(h, -1),
            lambda: torch.log_softmax(h, -1, dtype=FP32),
        ),
        "layer_norm": (
            lambda: F.layer_norm(h, (8,), w, b),
            lambda: F.layer_norm(h.to(FP32), (8,), w, b),
        ),
        "sum": (lambda: h.sum(), lambda: h.sum(dtype=FP32)),
        "exp": (lambda: h.exp(), lambda: h.to(FP32).exp()),
        "norm": (
            lambda: torch.linalg.vector_norm(h),
            lambda: torch.linalg.vector_norm(h, dtype=FP32),
        ),
        "mv": (lambda: torch.mv(m, v), lambda: torch.mv(m.to(FP16), v.to(FP16))),
        "atan2": (lambda: torch.atan2(h, w), lambda: torch.atan2(h.to(FP32), w)),
    }


def touched_ops(rounds: int) -> dict[str, Any]:
    """Microseconds beyond the cast and the op, under the policy and under stock autocast."""
    found: dict[str, Any] = {}
    under: dict[str, Any] = {
        "policy": hs.Policy("fp16", base="cuda").autocast("cpu"),
        "stock": torch.autocast("cpu", dtype=FP16),
        "by hand": contextlib.nullcontext(),
    }
    fresh = stock_before(rounds)
    for name, (as_written, by_hand) in ops().items():
        times: dict[str, list[float]] = {kind: [] for kind in under}
        for turn in range(rounds + 2):
            for kind, context in under.items():
                with context:
                    way = by_hand if kind == "by hand" else as_written
                    seconds = interleaved({name: way}, 1, CALLS)[name][-1]
                if turn >= 2:
                    times[kind].append(seconds)
        beyond = [p - b for p, b in zip(times["policy"], times["by hand"], strict=True)]
        found[f"{name}_beyond_us"] = [round(x, 2) for x in statistics.quantiles(beyond, n=4)]
        added = statistics.median(times["stock"]) - fresh[name]
        found[f"{name}_stock_pays_us"] = round(added, 2)
    return found


_before: dict[str, float] = {}


def stock_before(rounds: int) -> dict[str, float]:
    """Stock autocast, measured before the first policy with rules of this process."""
    if not _before:
        with torch.autocast("cpu", dtype=FP16):
            for name, (as_written, _) in ops().items():
                times = interleaved({name: as_written}, rounds, CALLS)[name]
                _before[name] = statistics.median(times)
    return _before


def language_model(rounds: int) -> dict[str, Any]:
    """Forward and backward of one batch."""
    recipe = lm()
    torch.manual_seed(0)
    model, batch = recipe.model(), next(iter(recipe.batches()))

    def step(context: Callable[[], Any]) -> Way:
        def run() -> None:
            with context():
                loss = recipe.loss_fn(model, batch)
            total: Tensor = loss.total if isinstance(loss, hs.LossSum) else loss
            total.backward()  # type: ignore[no-untyped-call]

        return run

    empty = hs.Policy("bf16")
    ways = {
        "stock": step(lambda: torch.autocast("cpu", dtype=torch.bfloat16)),
        "empty": step(lambda: empty.autocast("cpu")),
    }
    times = interleaved(ways, rounds, 1)
    return {
        "stock_ms": round(statistics.median(times["stock"]) / 1e3, 2),
        "empty_over_stock": quartiles(times["empty"], times["stock"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="few rounds, nothing written")
    parser.add_argument("--force", action="store_true", help="run on a busy machine too")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    busy = busy_fraction()
    if busy > 0.2 and not options.force:
        sys.exit(f"other processes use {busy:.0%} of the cores; wait, or give --force")
    rounds = 5 if options.quick else 60
    stock_before(rounds)
    results: dict[str, Any] = {
        "date": date.today().isoformat(),
        **machine(),
        "command": "python benchmarks/policy.py",
        "busy": round(busy, 3),
        "enter and leave": contexts(rounds),
        "ops, 8 x 8": touched_ops(rounds),
        "lm, forward and backward": language_model(rounds),
    }
    print(f"{results['cpu']}, {results['threads']} threads, torch {results['torch']}")
    for title, rows in results.items():
        if isinstance(rows, dict):
            print(f"\n{title}")
            for key, value in rows.items():
                median = value[1] if isinstance(value, list) else value
                spread = f"   [{value[0]:.2f}, {value[2]:.2f}]" if isinstance(value, list) else ""
                print(f"  {key.replace('_', ' '):32} {median:8.2f}{spread}")
    if options.quick:
        return
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"{results['date']}-policy-cpu.json"
    path.write_text(json.dumps(results, indent=2) + "\n")
    print(f"\nwritten to {os.path.relpath(path)}")


if __name__ == "__main__":
    main()
