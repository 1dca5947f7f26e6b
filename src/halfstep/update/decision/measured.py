"""What a decision starts from, and the numbers it ends in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from halfstep.records import BadValueError
from halfstep.update.decision.veto import Condition
from halfstep.update.optimizers.gradients import Gradients
from halfstep.update.readback import Number


@dataclass(slots=True, eq=False)
class Measured:
    """The gradients of one optimizer's window, and what they add up to.

    Attributes:
        name: Of the optimizer.
        gradients: With the parameters that have one.
        norm: 2-norm of the gradients as backward left them.
        unit: What they carry: scale times divisor over nominal.
        loss_scale: The scale that the window used: a float where the host knows it, else a copy.
        weight: What the window's sums are divided by: its divisor, or its micro-batches.
        sums: Loss total, weight and extra sums of the window.
        max_norm: Limit of the optimizer's own norm, or ``None``.
        vetoes: Conditions of the optimizer.
        left_by_clip: 2-norm after the user's clip callable, where there is one.
        rates: Learning rates that are on a device, in the order of the groups.
    """

    name: str
    gradients: Gradients
    norm: Number
    unit: Number
    loss_scale: Number
    weight: Number
    sums: Sequence[Number]
    max_norm: float | None = None
    vetoes: Sequence[Condition] = ()
    left_by_clip: Number | None = None
    rates: Sequence[Tensor] = ()

    @property
    def grads(self) -> list[Tensor]:
        """The gradients without the parameters."""
        return self.gradients.grads

    @property
    def shape(self) -> MeasuredShape:
        """What the numbers of the step are made of."""
        return MeasuredShape(tuple(self.vetoes), len(self.rates))


@dataclass(frozen=True, slots=True)
class MeasuredShape:
    """What the numbers of a step are made of, without the gradients that it holds.

    Attributes:
        vetoes: Conditions of the optimizer.
        num_rates: How many of its learning rates are on a device.
    """

    vetoes: tuple[Condition, ...]
    num_rates: int


@dataclass(slots=True)
class StepNumbers:
    """The numbers of a step once the host has them.

    Attributes:
        grad_norm: True norm before clipping.
        clip_coef: Factor applied by clipping.
        scale: Loss scale of the window.
        loss_total: Sum of the window's losses.
        weight: What it is divided by: the divisor, or the number of micro-batches.
        metrics: The window's extra sums.
        rates: Learning rates that were on a device.
    """

    grad_norm: float
    clip_coef: float
    scale: float
    loss_total: float
    weight: float
    metrics: Sequence[float]
    rates: Sequence[float] = ()


def reason_for(found_inf: float, weight: float) -> str | None:
    """Why an update is skipped because of its own gradients, or ``None``."""
    if weight == 0:
        return "empty_window"
    return "non_finite" if found_inf else None


def check_total(weight: float) -> None:
    """Refuse a window whose divisors cannot be; device divisors are first seen here."""
    if not (math.isfinite(weight) and weight >= 0):
        raise BadValueError(
            f"the divisors of this window add up to {weight}; each must be finite and not"
            " negative. Nothing was updated."
        )
