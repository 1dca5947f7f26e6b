"""The update step alone: bare fused step, halfstep, and the stock sequence, interleaved.

    python benchmarks/update.py            # the four sizes, AdamW and SGD; about four minutes
    python benchmarks/update.py --quick    # few rounds, nothing written

Every round times each contestant once, in turn, and the table shows medians and quartiles of the
ratios *within* a round, so that a slow phase of the machine hits all of them. Gradients are
prepared outside of the clock and kept alive, so that freeing them is charged to nobody. The stock
default optimizer allocates temporaries; its time depends on whether the heap hands back warm pages,
so glibc's mmap threshold is pinned and both cases are shown.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import SGD, AdamW, Optimizer

import halfstep as hs
from halfstep.update import OptimizerSlot, Update

SIZES = [(300, 64), (150, 4_096), (150, 300_000), (60, 3_000_000)]
SCALE = 2.0**16
MAX_NORM = 1.0
OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "AdamW": lambda params, **kw: AdamW(params, lr=1e-4, **kw),
    "SGD": lambda params, **kw: SGD(params, lr=1e-4, momentum=0.9, **kw),
}
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


class Contestant:
    """One way to do the update: parameters, optimizer, and the call that is timed."""

    def __init__(self, params: list[Parameter], call: Callable[[], object], scale: float) -> None:
        self.params = params
        self.call = call
        self.scale = scale
        self.before: Callable[[], None] = lambda: None

    def time(self, base: list[Tensor], buffers: list[Tensor]) -> float:
        """Seconds of one call on fresh gradients."""
        for p, source, buffer in zip(self.params, base, buffers, strict=True):
            p.grad = torch.mul(source, self.scale, out=buffer)
        self.before()
        start = time.perf_counter()
        self.call()
        return time.perf_counter() - start


def contestants(make: Callable[..., Optimizer], count: int, size: int) -> dict[str, Contestant]:
    """All ways over two sets of parameters: one for fused, one for the default optimizer."""
    torch.manual_seed(0)
    fused_params = [Parameter(torch.randn(size)) for _ in range(count)]
    default_params = [Parameter(p.detach().clone()) for p in fused_params]
    fused, default = make(fused_params, fused=True), make(default_params)
    slot = OptimizerSlot("optimizer", fused, hs.StaticLossScale(SCALE), max_norm=MAX_NORM)
    update = Update([slot])
    loss = torch.zeros(())

    def ours() -> None:
        slot.window.add(loss, None, {})
        update.run([slot])

    def stock(params: list[Parameter], optimizer: Optimizer) -> Callable[[], None]:
        scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
        scaler.scale(loss)

        def call() -> None:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(params, MAX_NORM)
            scaler.step(optimizer)
            scaler.update()

        return call

    found = {
        "bare": Contestant(fused_params, fused.step, 1.0),
        "halfstep": Contestant(fused_params, ours, SCALE),
        "stock fused": Contestant(fused_params, stock(fused_params, fused), SCALE),
    }
    for heap, warm in (("cold", False), ("warm", True)):
        name = f"stock default, {heap} heap"
        found[name] = Contestant(default_params, stock(default_params, default), SCALE)
        found[name].before = lambda warm=warm: pin_heap(warm)  # type: ignore[misc]
    return found


def pin_heap(warm: bool) -> None:
    """Keep freed memory (warm), or give every large block back to the system (cold)."""
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL("libc.so.6")
    threshold = 32 << 20 if warm else 128 << 10
    libc.mallopt(M_MMAP_THRESHOLD, threshold)
    libc.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1 if warm else 128 << 10)


def measure(make: Callable[..., Optimizer], count: int, size: int, rounds: int) -> dict[str, Any]:
    """Ratios of one size."""
    ways = contestants(make, count, size)
    base = [torch.randn(size) * 0.01 for _ in range(count)]
    buffers = [torch.empty(size) for _ in range(count)]
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 2):
        for name, way in ways.items():
            seconds = way.time(base, buffers)
            if turn >= 2:  # state is made in the first, plans in the second
                times[name].append(seconds)
    ours = times["halfstep"]
    return {
        "bare_ms": round(statistics.median(times["bare"]) * 1e3, 3),
        "read_gb_per_s": round(read_bandwidth(buffers), 1),
        "halfstep_over_bare": quartiles(ours, times["bare"]),
        **{
            f"{name}_over_halfstep": quartiles(times[name], ours)
            for name in times
            if name.startswith("stock")
        },
    }


def read_bandwidth(buffers: list[Tensor]) -> float:
    """Gigabytes per second of a plain sum: how near the memory of this process happens to lie."""
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        for buffer in buffers:
            buffer.sum()
        seconds.append(time.perf_counter() - start)
    return sum(b.numel() * b.element_size() for b in buffers) / statistics.median(seconds) / 1e9


def quartiles(numerators: list[float], denominators: list[float]) -> list[float]:
    """Lower quartile, median and upper quartile of the ratios within rounds."""
    ratios = [a / b for a, b in zip(numerators, denominators, strict=True)]
    return [round(value, 3) for value in statistics.quantiles(ratios, n=4)]


def busy_fraction(seconds: float = 1.0) -> float:
    """Measured of all cores that others use right now (Linux; 0 elsewhere)."""

    def read() -> tuple[int, int]:
        fields = [int(x) for x in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        return sum(fields) - fields[3] - fields[4], sum(fields)

    if not Path("/proc/stat").exists():
        return 0.0
    busy, total = read()
    time.sleep(seconds)
    busy_later, total_later = read()
    return (busy_later - busy) / max(1, total_later - total)


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    cpuinfo = Path("/proc/cpuinfo")
    names = [
        line.split(":")[1].strip()
        for line in (cpuinfo.read_text().splitlines() if cpuinfo.exists() else [])
        if line.startswith("model name")
    ]
    return {
        "cpu": names[0] if names else platform.processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "command": "python benchmarks/update.py",
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
    results: dict[str, Any] = {
        "date": date.today().isoformat(),
        **machine(),
        "busy": round(busy, 3),
    }
    print(f"{results['cpu']}, {results['threads']} threads, torch {results['torch']}")
    for name, make in OPTIMIZERS.items():
        for count, size in SIZES:
            rounds = 5 if options.quick else (12 if size > 10**6 else 40 if size > 10**5 else 200)
            row = measure(make, count, size, rounds)
            results[f"{name} {count} x {size}"] = row
            bare, read = row["bare_ms"], row["read_gb_per_s"]
            print(f"\n{name}, {count} x {size:,} (bare {bare:.2f} ms, pure read {read} GB/s)")
            for key, value in row.items():
                if isinstance(value, list):
                    low, median, high = value
                    print(f"  {key.replace('_', ' '):42} {median:6.2f}   [{low:.2f}, {high:.2f}]")
    if options.quick:
        return
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"{results['date']}-update-cpu.json"
    path.write_text(json.dumps(results, indent=2) + "\n")
    print(f"\nwritten to {os.path.relpath(path)}")


if __name__ == "__main__":
    main()
