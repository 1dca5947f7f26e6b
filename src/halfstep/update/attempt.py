"""One attempt at an update: what is known when it is launched, and its record afterwards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.optim import Optimizer

from halfstep.records import StepRecord
from halfstep.update.readback import Number
from halfstep.update.window import Window


@dataclass(frozen=True)
class Numbers:
    """The numbers of an attempt once the host has them.

    Attributes:
        grad_norm: True norm before clipping.
        clip_coef: Factor applied by clipping.
        scale: Loss scale of the window.
        loss_total: Sum of the window's losses.
        weight: What it is divided by: the divisor, or the number of micro-batches.
        metrics: The window's extra sums.
    """

    grad_norm: float
    clip_coef: float
    scale: float
    loss_total: float
    weight: float
    metrics: Sequence[float]


@dataclass(frozen=True)
class Attempt:
    """What the host knows of an attempt without asking the device.

    Attributes:
        number: Attempts so far, this one included.
        lr: Learning rate of each group, as it was.
        has_divisor: Whether the losses were sums.
        metric_names: Names of the extra sums.
        micro_batches: Numbers of the window's backward calls.
    """

    number: int
    lr: list[Number]
    has_divisor: bool
    metric_names: tuple[str, ...]
    micro_batches: tuple[int, ...]

    @classmethod
    def of(cls, number: int, optimizer: Optimizer, window: Window) -> Attempt:
        """The attempt that is about to be launched."""
        rates = [_copied(group["lr"]) for group in optimizer.param_groups]
        names, numbers = tuple(window.metrics), tuple(window.micro_batches)
        return cls(number, rates, window.divisor is not None, names, numbers)

    def record(
        self, numbers: Numbers, reason: str | None, next_scale: float, consumed: float
    ) -> StepRecord:
        """The attempt as plain data."""
        weight = numbers.weight
        averages = [_ratio(metric, weight) for metric in numbers.metrics]
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
            lr=[float(rate) for rate in self.lr],
            consumed=consumed,
        )


def reason_for(found_inf: float, weight: float) -> str | None:
    """Why an attempt moves nothing by its own gradients, or ``None``."""
    if weight == 0:
        return "empty_window"
    return "non_finite" if found_inf else None


def _copied(rate: Number) -> Number:
    return rate.clone() if isinstance(rate, Tensor) else rate


def _ratio(total: float, weight: float) -> float:
    return total / weight if weight else math.nan
