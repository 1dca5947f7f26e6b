"""What the drop-in remembers of its last step, and the outcome that is made of it on request."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from halfstep.records import StepRecord
from halfstep.update.decision.measured import StepNumbers, reason_for
from halfstep.update.decision.multiplier import clip_coefficient
from halfstep.update.readback import LateNumbers, Number
from halfstep.update.step.launched_step import LaunchedStep
from halfstep.update.step.outcome import StepOutcome


@dataclass(slots=True)
class LastStep:
    """The facts of one step. A loop that never asks for the outcome pays for keeping them only.

    Attributes:
        number: Steps of the optimizer so far, this one included.
        lr: Learning rate of each parameter group, as it was.
        loss_scale: What the losses of the window were multiplied by; the live tensor of a scale
            on a device, until `GradScaler.update` puts a copy here.
        found_inf: 1 if the update must not happen.
        grad_norm: True norm before clipping; NaN where nobody computed it.
        clip_coef: Factor applied by clipping.
        max_norm: What the norm was clipped at, where it is left to the host to work out the factor.
        reason: Why nothing moved, where `found_inf` does not say it.
    """

    number: int
    lr: list[Number]
    loss_scale: Number
    found_inf: Number = 0.0
    grad_norm: Number = math.nan
    clip_coef: Number = 1.0
    max_norm: float | None = None
    reason: str | None = None

    def outcome(self) -> StepOutcome:
        """The outcome; device values are on their way to the host from here on.

        Syncs: no; the fields of the outcome do, where the device knows a value.
        """
        launched = LaunchedStep(self.number, self.lr, False, (), ())
        reason, limit = self.reason, self.max_norm
        facts = LateNumbers([self.found_inf, self.grad_norm, self.clip_coef, self.loss_scale])

        def record() -> StepRecord:
            found_inf, grad_norm, clip_coef, scale = facts.wait()
            if limit is not None:
                clip_coef = clip_coefficient(grad_norm, limit)
            numbers = StepNumbers(grad_norm, clip_coef, scale, math.nan, 1.0, ())
            return launched.record(numbers, reason or reason_for(found_inf, 1.0), scale, 0.0)

        return StepOutcome(record)


def rates_of(optimizer: object) -> list[Number]:
    """Learning rate of each parameter group; tensors are copied, because schedules write to them.

    Args:
        optimizer: Anything with ``param_groups``.
    """
    rates = [group.get("lr", math.nan) for group in optimizer.param_groups]  # type: ignore[attr-defined]
    return [rate.clone() if isinstance(rate, Tensor) else rate for rate in rates]
