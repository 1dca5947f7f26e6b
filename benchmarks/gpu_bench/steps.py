"""One step looked at: its kernels and memory copies, and where it makes the host wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch

import halfstep as hs
from benchmarks.gpu_bench.cases import Case, Measured, absent
from benchmarks.gpu_bench.device_time import (
    WARM_UP,
    kernels_of,
    profiler_is_missing,
    waits_of,
)
from benchmarks.gpu_bench.setup import Setup, release, tiny_workloads, with_accelerate
from benchmarks.gpu_bench.trainers import (
    DropIn,
    DropInWithClip,
    Halfstep,
    HalfstepWithAverage,
    HalfstepWithRollback,
    Stock,
    StockWithAverage,
    Trainer,
    loss_of,
)
from benchmarks.gpu_bench.workloads import Batch, Workload

STEPS = 3  # whose waits are counted


def kernel_cases(setup: Setup) -> Iterator[Case]:
    if reason := profiler_is_missing(setup.device):
        yield absent("kernels", "all", reason)
        return
    for format_name in ("bf16", "fp16"):
        for workload in setup.training:
            name = f"one step of {workload.name}, {format_name}"
            yield Case("kernels", name, partial(count_kernels, setup, workload, format_name))


def wait_cases(setup: Setup) -> Iterator[Case]:
    yield Case("waits", "of the host, per step", partial(count_waits, setup.device))


def count_kernels(setup: Setup, workload: Workload, format_name: str) -> Measured:
    """Kernels, copies and fills of a step, and of its part after the backward."""
    found = Measured()
    batch = workload.batch(max(1, workload.samples // 4), setup.device)
    ways = [Stock, Halfstep, *([DropIn, DropInWithClip] if format_name == "fp16" else [])]
    for trainer_type in with_accelerate(*ways):
        trainer = trainer_type(workload, format_name, setup.device)
        for _ in range(WARM_UP):
            trainer.step([batch])
        step = kernels_of(partial(trainer.step, [batch]), setup.device)
        with trainer.autocast():
            loss = loss_of(trainer.model, batch)
        trainer.backward(loss)
        update = kernels_of(trainer.update, setup.device)
        found.rows[trainer.name] = {
            **{f"{kind}_of_step": getattr(step, kind) for kind in ("kernels", "copies", "fills")},
            **{f"{kind}_of_update": getattr(update, kind) for kind in ("kernels", "copies")},
        }
        if step.copies:
            found.notes.append(f"copies of {trainer.name}: {', '.join(step.names)}")
        del trainer, loss
        release()
    return found


class Counted(NamedTuple):
    """A step whose waits are counted.

    Attributes:
        name: For the table.
        step: Makes it.
        like: The name of the stock step on the same model; it may wait as often as that one, whose
            waits are the model's. ``None`` for what may wait as often as it likes.
    """

    name: str
    step: Callable[[], object]
    like: str | None


def count_waits(device: torch.device) -> Measured:
    """Waits of each way, which do not depend on the size; an `.item()` shows that they count."""
    found = Measured()
    failures = []
    control = torch.zeros((), device=device)
    if (seen := len(waits_of(control.item))) != 1:
        failures.append(f"an .item() was counted as {seen} waits, so that no count means anything")
    for name, step, like in _steps(device):
        places = waits_of_steps(step)
        found.rows[name] = {"waits": len(places) / STEPS, "places": sorted(set(places))}
        if like is not None and found.rows[name]["waits"] > found.rows[like]["waits"]:
            failures.append(f"{name} made the host wait in a fused step")
    found.failure = "; ".join(failures) or None
    return found


def waits_of_steps(step: Callable[[], object]) -> list[str]:
    """Places of the waits in some steps, once state, plans and pinned memory exist."""
    for _ in range(WARM_UP):
        step()
    return [place for _ in range(STEPS) for place in waits_of(step)]


def _steps(device: torch.device) -> Iterator[Counted]:
    language, images = tiny_workloads()
    for format_name in ("bf16", "fp16"):
        drop_ins = (DropIn, DropInWithClip) if format_name == "fp16" else ()
        for size in (1, 4):
            ways = with_accelerate(Stock, Halfstep, *drop_ins)
            yield from _steps_of(ways, language, format_name, size, device)
    followed = (Stock, StockWithAverage, Halfstep, HalfstepWithAverage, HalfstepWithRollback)
    yield from _steps_of(followed, images, "fp16", 1, device)
    like = f"{Stock.name} {language.name} bf16, window of 1"
    yield Counted("halfstep with LossSum", _loss_sum_step(device), like)


def _steps_of(
    ways: Sequence[type[Trainer]], workload: Workload, format_name: str, size: int,
    device: torch.device,
) -> Iterator[Counted]:  # fmt: skip
    """The stock loop comes first."""
    setting = f"{workload.name} {format_name}, window of {size}"
    for way in ways:
        window = [workload.batch(workload.samples, device)] * size
        trainer = way(workload, format_name, device)
        is_ours = issubclass(way, (Halfstep, DropIn))
        like = f"{Stock.name} {setting}" if is_ours else None
        yield Counted(f"{way.name} {setting}", partial(trainer.step, window), like)


def _loss_sum_step(device: torch.device) -> Callable[[], object]:
    """A divisor that the host does not know."""
    workload, _ = tiny_workloads()
    trainer = Halfstep(workload, "bf16", device)
    batch = workload.batch(workload.samples, device)
    tokens = torch.full((), batch[0].numel(), device=device)

    def total(model: torch.nn.Module, batch: Batch) -> hs.LossSum:
        return hs.LossSum(loss_of(model, batch) * tokens, tokens)

    return lambda: trainer.engine.train_step([batch], total)
