"""From a launched step to its record: one optimizer's, and that of several together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.optim import Optimizer

from halfstep.records import StepRecord
from halfstep.update.decision.measured import StepNumbers
from halfstep.update.readback import Number
from halfstep.update.step.window import Window


@dataclass(slots=True)
class LaunchedStep:
    """What the host knows of a step at its launch, without asking the device.

    Attributes:
        number: Steps so far, this one included.
        lr: Learning rate of each group, as it was; ``None`` for those on a device, which are read
            with the other numbers of the step.
        has_divisor: Whether the losses were sums.
        metric_names: Names of the extra sums.
        micro_batches: Numbers of the window's backward calls.
    """

    number: int
    lr: Sequence[Number | None]
    has_divisor: bool
    metric_names: tuple[str, ...]
    micro_batches: tuple[int, ...]

    @classmethod
    def of(cls, number: int, optimizer: Optimizer, window: Window) -> LaunchedStep:
        """The step that is about to be launched."""
        rates = [group["lr"] for group in optimizer.param_groups]
        names, numbers = tuple(window.metrics), tuple(window.micro_batches)
        known = [None if is_on_a_device(rate) else float(rate) for rate in rates]
        return cls(number, known, window.divisor is not None, names, numbers)

    def record(
        self, numbers: StepNumbers, reason: str | None, next_scale: float, consumed: float
    ) -> StepRecord:
        """The step as plain data."""
        weight = numbers.weight
        averages = [_ratio(metric, weight) for metric in numbers.metrics]
        read = iter(numbers.rates)
        return StepRecord(
            step=self.number,
            updated=reason is None,
            reason=reason,
            loss=_ratio(numbers.loss_total, weight),
            divisor=weight if self.has_divisor else None,
            metrics=dict(zip(self.metric_names, averages, strict=True)),
            grad_norm=numbers.grad_norm,
            clip_coef=numbers.clip_coef if reason is None else 1.0,
            loss_scale=numbers.scale,
            next_loss_scale=next_scale,
            lr=[next(read) if rate is None else float(rate) for rate in self.lr],
            consumed=consumed,
        )


def combine(
    parts: Mapping[str, StepRecord],
    micro_batches: Sequence[tuple[int, ...]],
    number: int,
    consumed: float,
) -> StepRecord:
    """The record of a step that several optimizers made together.

    It is an update if any optimizer moved; else its reason is the first one that is a cause.
    Norms join as one norm over all gradients. Losses are averaged over the windows; optimizers
    that saw the same backward calls count once.

    Args:
        parts: Optimizer name to its own record.
        micro_batches: Numbers of the backward calls in each one's window, in the same order.
        number: Steps of the run so far.
        consumed: Divisors of all committed steps of the run.
    """
    records = list(parts.values())
    by_window = dict(zip(micro_batches, records, strict=True))
    windows = list(by_window.values())
    weights = [len(c) if r.divisor is None else r.divisor for c, r in by_window.items()]
    total = sum(weights)

    def average(values: Sequence[float]) -> float:
        summed = sum(v * w for v, w in zip(values, weights, strict=True) if w)
        return summed / total if total else math.nan

    metrics = [r.metrics for r in windows]
    names = [name for name in metrics[0] if all(name in m for m in metrics)]
    divisors = [r.divisor for r in windows]
    updated = any(r.updated for r in records)
    norms = [r.grad_norm for r in records if r.reason != "empty_window"]
    return StepRecord(
        step=number,
        updated=updated,
        reason=None if updated else _cause([r.reason for r in records]),
        loss=average([r.loss for r in windows]),
        divisor=None if None in divisors else total,
        metrics={name: average([m[name] for m in metrics]) for name in names},
        grad_norm=math.hypot(*norms) if norms else math.nan,
        clip_coef=min(r.clip_coef for r in records),
        loss_scale=records[0].loss_scale,
        next_loss_scale=records[0].next_loss_scale,
        lr=[rate for r in records for rate in r.lr],
        consumed=consumed,
        per_optimizer=dict(parts),
    )


def _cause(reasons: Sequence[str | None]) -> str | None:
    """The first reason that is not another optimizer's."""
    return min(reasons, key=lambda reason: reason in ("together", "no_gradient", "empty_window"))


def is_on_a_device(rate: object) -> bool:
    """Whether the host would have to wait for a learning rate."""
    return isinstance(rate, Tensor) and not rate.is_cpu


def _ratio(total: float, weight: float) -> float:
    return total / weight if weight else math.nan
