"""The update alone, after the backward: `Engine.step` against the stock sequence and the others.

Every way has a model of its own at its real shapes. The gradients come from a backward that does
nothing but hand out given ones, so that each way gets them in its own scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.gpu_bench.cases import Case, Measured, Row
from benchmarks.gpu_bench.device_time import Times, interleaved
from benchmarks.gpu_bench.setup import Setup, release, with_accelerate
from benchmarks.gpu_bench.trainers import (
    Bare,
    DropIn,
    DropInWithClip,
    Halfstep,
    HalfstepWithAverage,
    HalfstepWithRollback,
    Stock,
    StockWithAverage,
    Trainer,
)
from benchmarks.gpu_bench.workloads import Workload
from benchmarks.update import quartiles

EPS = torch.finfo(torch.float32).eps
_MOST_UNFUSED = 50_000_000  # parameters; the foreach optimizers need temporaries of that size
_ELEMENT = 2.0**-7  # of gradients whose norm is known exactly
# A way, and the way that its ratio is taken to.
AGAINST = {
    "halfstep bf16": "stock bf16",
    "halfstep fp16": "stock fp16",
    "halfstep, ema bf16": "stock, average bf16",
    "halfstep, rollback bf16": "halfstep bf16",
    "drop-in fp16": "stock fp16",
    "drop-in, its clip fp16": "stock fp16",
    "accelerate fp16": "stock fp16",
    "halfstep fp16, foreach": "stock fp16, foreach",
}


def update_cases(setup: Setup) -> Iterator[Case]:
    for workload in setup.updates:
        name = f"after the backward, {workload.name}"
        yield Case("update", name, partial(measure_updates, setup, workload))


def norm_cases(setup: Setup) -> Iterator[Case]:
    yield Case("norm", "accumulated in float64 and in float32", partial(measure_norms, setup))


class GivenGradients(torch.autograd.Function):
    """A loss whose gradients are given; they are multiplied by that of the loss."""

    @staticmethod
    def forward(ctx: Any, gradients: Sequence[Tensor], *params: Tensor) -> Tensor:
        ctx.gradients = gradients
        return params[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        return None, *torch._foreach_mul(ctx.gradients, grad_outputs[0])


def backward_of(trainer: Trainer, gradients: Sequence[Tensor]) -> None:
    with trainer.autocast():
        loss: Tensor = GivenGradients.apply(gradients, *trainer.params)  # type: ignore[no-untyped-call]
    trainer.backward(loss)


def trainers_for(workload: Workload, device: torch.device) -> dict[str, Trainer]:
    """Each way with a model of its own."""
    rows: list[tuple[type[Trainer], str]] = [
        (Bare, "bf16"), (Stock, "bf16"), (Halfstep, "bf16"), (Stock, "fp16"), (Halfstep, "fp16"),
        (DropIn, "fp16"), (DropInWithClip, "fp16"), (StockWithAverage, "bf16"),
        (HalfstepWithAverage, "bf16"),
    ]  # fmt: skip
    rows += [(each, "fp16") for each in with_accelerate()]
    found = {f"{each.name} {name}": each(workload, name, device) for each, name in rows}
    if any(isinstance(m, nn.BatchNorm2d) for m in found["bare bf16"].plain_model.modules()):
        found["halfstep, rollback bf16"] = HalfstepWithRollback(workload, "bf16", device)
    if sum(p.numel() for p in found["bare bf16"].params) < _MOST_UNFUSED:
        for each in (Stock, Halfstep):
            name = f"{each.name} fp16, foreach"
            found[name] = each(workload, "fp16", device, is_fused=False)
    return found


def measure_updates(setup: Setup, workload: Workload) -> Measured:
    """Times of each way, and ratios within a round."""
    trainers = trainers_for(workload, setup.device)
    gradients = [torch.randn_like(p) * 0.01 for p in trainers["bare bf16"].params]
    ways = {
        name: partial(setup.stopwatch, partial(backward_of, trainer, gradients), trainer.update)
        for name, trainer in trainers.items()
    }
    times = interleaved(ways, setup.rounds_of_updates())
    found = Measured({name: row_of(name, times) for name in times})
    found.notes.append(f"{len(times['bare bf16'])} rounds, {len(gradients)} tensors")
    return found


def row_of(name: str, times: dict[str, list[Times]]) -> Row:
    """Quartiles of a way: its times, and its device time over others' in the same round."""
    row: Row = {
        f"{field}_us": microseconds(times[name], field) for field in ("host", "wall", "device")
    }
    row["device_ratio_to_bare"] = over(times[name], times["bare bf16"])
    other = AGAINST.get(name)
    row["against"] = other
    row["device_ratio"] = over(times[name], times[other]) if other else None
    row["wall_ratio"] = over(times[name], times[other], "wall") if other else None
    return row


def over(
    some: Sequence[Times], others: Sequence[Times], field: str = "device"
) -> list[float] | None:
    """Quartiles of the ratios within rounds, where both times are known."""
    pairs = [(getattr(a, field), getattr(b, field)) for a, b in zip(some, others, strict=True)]
    pairs = [pair for pair in pairs if None not in pair]
    return quartiles(*map(list, zip(*pairs, strict=True))) if len(pairs) > 1 else None


def microseconds(some: Sequence[Times], field: str) -> list[float] | None:
    """Quartiles of the times themselves."""
    return over(some, [Times(1e-3, 1e-3, 1e-3)] * len(some), field)


def foreach_norm(gradients: list[Tensor], dtype: torch.dtype) -> Tensor:
    norms = torch._foreach_norm(gradients, 2, dtype=dtype)
    joined: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return joined


def measure_norms(setup: Setup) -> Measured:
    """What the engine's norm in float64 costs over one in float32, and how far off each is."""
    found = Measured()
    for workload in setup.updates:
        gradients = [torch.full_like(p, _ELEMENT) for p in workload.on(setup.device).parameters()]
        exact = _ELEMENT * math.sqrt(sum(gradient.numel() for gradient in gradients))
        dtypes = {"float32": torch.float32, "float64": torch.float64}
        ways = {
            name: partial(setup.stopwatch, lambda: None, partial(foreach_norm, gradients, dtype))
            for name, dtype in dtypes.items()
        }
        times = interleaved(ways, setup.rounds_of_updates())
        row: Row = {}
        for name, dtype in dtypes.items():
            row[f"{name}_device_us"] = microseconds(times[name], "device")
            error = abs(float(foreach_norm(gradients, dtype)) / exact - 1) / EPS
            row[f"{name}_error_eps"] = round(error, 3)
        row["float64_over_float32"] = over(times["float64"], times["float32"])
        found.rows[workload.name] = row
        del gradients, ways
        release()
    return found
