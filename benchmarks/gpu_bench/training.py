"""Whole training steps: the stock loop, Engine and Accelerate in turn, and what follows a step.

Each way has a model of its own on the same batches. A round gives each way the same micro-batches
once, and the clock stops when the device is done. ``read`` asks for the loss after every step, as a
progress bar does; the others never ask.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch

from benchmarks.gpu_bench.cases import Case, LeftOut, Measured, Row, absent
from benchmarks.gpu_bench.device_time import (
    WARM_UP,
    interleaved,
    kernels_of,
    profiler_is_missing,
)
from benchmarks.gpu_bench.setup import Setup, accelerate_fails, release, with_accelerate
from benchmarks.gpu_bench.trainers import (
    DropIn,
    DropInWithClip,
    Halfstep,
    HalfstepWithAverage,
    HalfstepWithRollback,
    Stock,
    StockWithAverage,
    Trainer,
    compiler_fails,
    compiler_is_missing,
)
from benchmarks.gpu_bench.workloads import Batch, Workload
from benchmarks.update import quartiles

FOLLOWED = (
    Stock, DropIn, DropInWithClip, StockWithAverage, Halfstep, HalfstepWithAverage,
    HalfstepWithRollback,
)  # fmt: skip
READ = ", read"


@dataclass(frozen=True)
class Training:
    """What is trained, and how."""

    workload: Workload
    format_name: str
    window: int
    is_compiled: bool = False

    def __str__(self) -> str:
        compiled = ", compiled" if self.is_compiled else ""
        return f"{self.workload.name} {self.format_name}, window of {self.window}{compiled}"


class Round(NamedTuple):
    """Seconds per step, and bytes by which the memory rose."""

    seconds: float
    rise: int


def training_cases(setup: Setup) -> Iterator[Case]:
    """In order of value: eager before compiled, windows of 1 before windows of 4."""
    if reason := accelerate_fails():
        yield absent("training", "accelerate", reason)
    yield from _in_eager(setup, window=1)
    reason = compiler_is_missing()
    if reason:
        yield absent("training", "compiled", reason)
    else:
        yield from _compiled(setup, window=1)
    yield from _in_eager(setup, window=4)
    if not reason:
        yield from _compiled(setup, window=4)


def follower_cases(setup: Setup) -> Iterator[Case]:
    """The drop-in, averages and rollback, on the model that has buffers."""
    training = Training(setup.training[1], "fp16", 1)
    measure = partial(measure_training, setup, training, FOLLOWED, reads=False)
    yield Case("followers", str(training), measure, _needs(setup, 15))


def _in_eager(setup: Setup, window: int) -> Iterator[Case]:
    for format_name in ("bf16", "fp16"):
        for workload in setup.training:
            yield _case(setup, Training(workload, format_name, window), 15)


def _compiled(setup: Setup, window: int) -> Iterator[Case]:
    for format_name in ("bf16", "fp16"):
        for workload in setup.training:
            yield _case(setup, Training(workload, format_name, window, is_compiled=True), 90)


def _case(setup: Setup, training: Training, seconds: float) -> Case:
    ways = with_accelerate(Stock, Halfstep)
    measure = partial(measure_training, setup, training, ways)
    return Case("training", str(training), measure, _needs(setup, seconds))


def _needs(setup: Setup, seconds: float) -> float:
    return 0.0 if setup.is_tiny else seconds


def measure_training(
    setup: Setup, training: Training, ways: Sequence[type[Trainer]], reads: bool = True
) -> Measured:
    """All ways in turn; with half the samples where the memory does not suffice."""
    if training.is_compiled and (reason := compiler_fails(setup.device)):
        raise LeftOut(reason)
    samples, notes = training.workload.samples, list[str]()
    while True:
        try:
            found = _measure(setup, training, ways, samples, reads)
        except torch.OutOfMemoryError:
            if samples == 1:
                raise
        else:
            found.notes[:0] = notes
            return found
        release()  # outside of the handler, whose traceback holds the models
        samples //= 2
        notes = [f"out of memory; {samples} samples in a micro-batch instead"]


def _measure(
    setup: Setup, training: Training, ways: Sequence[type[Trainer]], samples: int, reads: bool
) -> Measured:
    batch = training.workload.batch
    batches = [batch(samples, setup.device) for _ in range(training.window)]
    trainers, kept = _built(setup, training, ways, batches)
    steps = max(1, setup.micro_batches // training.window)
    rounds: dict[str, Callable[[], Round]] = {}
    for name, trainer in trainers.items():
        rounds[name] = partial(one_round, setup.device, trainer, batches, steps, False)
        if reads:
            rounds[name + READ] = partial(one_round, setup.device, trainer, batches, steps, True)
    found = interleaved(rounds, setup.rounds_of_training(), warm_up=1)
    per_step = training.window * samples * training.workload.unit[1]
    measured = Measured({name: row_of(name, found, per_step, training) for name in found})
    for name, trainer in trainers.items():
        row = measured.rows[name]
        row["peak_bytes"] = kept[name] + max(each.rise for each in found[name])
        if not profiler_is_missing(setup.device):
            step = kernels_of(partial(trainer.step, batches), setup.device)
            row["kernels"], row["copies"] = step.kernels, step.copies
        loss = trainer.read()
        row["loss"] = loss if math.isfinite(loss) else str(loss)  # JSON has no NaN
        row["loss_scale"] = trainer.loss_scale()
    count = len(found[next(iter(trainers))])
    measured.notes.append(
        f"{samples} samples in a micro-batch, {steps} steps in a round, {count} rounds"
    )
    return measured


def _built(
    setup: Setup, training: Training, ways: Sequence[type[Trainer]], batches: Sequence[Batch]
) -> tuple[dict[str, Trainer], dict[str, int]]:
    """The trainers after their first steps, and the bytes that each keeps between steps."""
    trainers, kept = {}, {}
    _make_workspaces(setup.device)
    if training.is_compiled:
        torch.compiler.reset()  # else earlier cases count towards the limit of recompilations
    for way in ways:
        before = allocated(setup.device)
        trainer = way(
            training.workload,
            training.format_name,
            setup.device,
            is_compiled=training.is_compiled,
        )
        for _ in range(WARM_UP):
            trainer.step(batches)
        trainers[way.name] = trainer
        kept[way.name] = allocated(setup.device) - before
    return trainers, kept


def _make_workspaces(device: torch.device) -> None:
    """cuBLAS keeps memory per thread from its first product on: charge it to none of the ways."""
    x = torch.ones(64, 64, dtype=torch.float16, device=device, requires_grad=True)
    (x @ x).sum().backward()  # type: ignore[no-untyped-call]


def allocated(device: torch.device) -> int:
    """Bytes in tensors, once the device is done with them."""
    torch.cuda.synchronize(device)
    return torch.cuda.memory_allocated(device)


def one_round(
    device: torch.device, trainer: Trainer, batches: Sequence[Batch], steps: int, reads: bool
) -> Round:
    """Some steps, from an idle device to an idle device."""
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    begin = time.perf_counter()
    for _ in range(steps):
        trainer.step(batches)
        if reads:
            trainer.read()
    torch.cuda.synchronize(device)
    seconds = (time.perf_counter() - begin) / steps
    return Round(seconds, torch.cuda.max_memory_allocated(device) - before)


def row_of(name: str, found: dict[str, list[Round]], per_step: int, training: Training) -> Row:
    """Time, time over that of the stock loop which does the same, and speed."""
    seconds = [each.seconds for each in found[name]]
    other = stock_of(name)
    ones = [1.0] * len(seconds)
    return {
        "ms": quartiles([each * 1e3 for each in seconds], ones),
        "against": other,
        "time_ratio": None if other is None else _ratios(seconds, found[other]),
        f"{training.workload.unit[0]}_per_s": quartiles([float(per_step)] * len(ones), seconds),
    }


def _ratios(seconds: list[float], others: Sequence[Round]) -> list[float]:
    return quartiles(seconds, [each.seconds for each in others])


def stock_of(name: str) -> str | None:
    """The way that does with torch's parts what this one does."""
    base = name.removesuffix(READ)
    if base in (Stock.name, StockWithAverage.name):
        return None
    other = StockWithAverage.name if base == HalfstepWithAverage.name else Stock.name
    return other + name[len(base) :]
