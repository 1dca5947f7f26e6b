"""What a decision starts from, and the numbers it ends in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from halfstep.records import BadValueError
from halfstep.update.decision.veto import Condition
from halfstep.update.optimizers.gradients import Gradients
from halfstep.update.optimizers.square_sums import Squares
from halfstep.update.readback import Number, is_one


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
        nominal: The power of two that the window's losses were divided by in backward.
        is_true: Whether the gradients are unscaled and normalised already.
        has_divisor: Whether the losses were sums.
        metric_names: Of the extra sums.
        has_gradients: Whether any parameter has one, on any rank.
        squares: What the ranks exchange; ``None`` in a process of its own.
        agreement: 0 if the ranks agree on the step, see `check_agreement`.
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
    nominal: float = 1.0
    is_true: bool = False
    has_divisor: bool = False
    metric_names: tuple[str, ...] = ()
    has_gradients: bool = True
    squares: Squares | None = None
    agreement: Number = 0.0

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


def carried(scale: Number, weight: Number, divided_by: float) -> Number:
    """What the gradients of a window carry.

    Args:
        scale: The loss scale.
        weight: What the window's sums are divided by.
        divided_by: What they were divided by in backward and in the exchange of gradients.
    """
    left = weight / divided_by
    return scale if is_one(left) else scale * left


def check_agreement(agreement: float) -> None:
    """Refuse a step in which ranks did not agree.

    Raises:
        BadValueError: On every rank alike.
    """
    if agreement >= 2:
        raise BadValueError(
            "the gradients of parameters that all ranks hold alike are not the same on all ranks:"
            " a parameter is outside of its DistributedDataParallel or fully_shard wrapper, or the"
            " last backward of the window ran without the exchange of gradients (no_sync, or a"
            " forward in another context than its backward; see engine.micro_batch). Nothing was"
            " updated."
        )
    if agreement:
        raise BadValueError(
            "the ranks do not agree on this step: they have other loss scales, other numbers of"
            " steps or updates behind them, other optimizers or metrics in this step, or mean"
            " losses on one rank and LossSums on another. Nothing was updated. Build the engine"
            " with the same settings and load the same checkpoint on every rank."
        )
