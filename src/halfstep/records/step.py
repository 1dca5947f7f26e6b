"""`StepRecord`: what one attempted update did."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from halfstep.records.floats import decode_floats, encode_floats
from halfstep.records.window_diagnosis import WindowDiagnosis


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One attempted update as plain data.

    Attributes:
        step: Number of attempts so far, this one included (the first is 1).
        updated: Whether parameters, optimizer state, schedule and clock moved.
        reason: Why nothing moved: ``"non_finite"`` (a gradient held inf or NaN),
            ``"empty_window"`` (the divisor of the window was 0), ``"veto: NAME"`` (a condition of
            the user's), and with several optimizers ``"together"`` (another one had to hold) or
            ``"no_gradient"``; ``None`` after an update.
        loss: Mean loss of the window: the sum over its divisor, or the mean over micro-batches.
        divisor: What the window's loss sum was divided by (valid tokens, samples);
            ``None`` for losses that are means.
        metrics: The window's extra sums, each over the divisor.
        grad_norm: 2-norm of the true gradients: unscaled, normalised, before clipping.
        clip_coef: Factor applied by clipping, at most 1; 1 without clipping.
        loss_scale: Scale that the window's backward used.
        next_loss_scale: Scale that the next window will use.
        lr: Learning rate of each parameter group during this update.
        consumed: Sum of divisors over all committed updates, this one included.
        batch: Number of micro-batches before this window, where a run knows it: with the recipe's
            fixed order it says which data the step saw.
        data: Checksum of the content of the window's batches, where a run knows it: type and shape
            of every tensor, up to 4,096 evenly spaced values of each, numbers and texts. Tensors
            that come on an accelerator count by type and shape.
        diagnosis: What a replay of a skipped window found, where the engine was asked for it.
        fallback: Format that the whole run goes on in from the next step, after a collapse of the
            loss scale that the engine was allowed to survive.
        checksum: Over the bits of all parameters after the step, where a run was asked for it.
        lost_updates: Parameter name to the share of it that had a gradient and did not move by a
            bit, where an engine was asked for it.
        per_optimizer: With several optimizers each one's own record, by name.
        zero_gradient_fraction: Share of the gradient values that were exactly 0, where a run was
            asked for it and the step was an update.
    """

    step: int
    updated: bool
    reason: str | None
    loss: float
    divisor: float | None
    metrics: dict[str, float]
    grad_norm: float
    clip_coef: float
    loss_scale: float
    next_loss_scale: float
    lr: list[float]
    consumed: float
    batch: int | None = None
    checksum: str | None = None
    diagnosis: WindowDiagnosis | None = None
    fallback: str | None = None
    lost_updates: dict[str, float] | None = None
    per_optimizer: dict[str, StepRecord] | None = None
    zero_gradient_fraction: float | None = None
    data: str | None = None

    @property
    def skipped(self) -> bool:
        """The opposite of `updated`."""
        return not self.updated

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; inf and NaN become the strings ``"inf"``, ``"-inf"``, ``"nan"``."""
        data = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        data["diagnosis"] = None if self.diagnosis is None else self.diagnosis.to_dict()
        if self.per_optimizer is not None:
            data["per_optimizer"] = {k: part.to_dict() for k, part in self.per_optimizer.items()}
        return {key: encode_floats(value) for key, value in data.items()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> StepRecord:
        """The inverse of `to_dict`."""
        texts = {"reason", "checksum", "data", "diagnosis", "fallback"}
        fields = {k: v if k in texts else decode_floats(v) for k, v in data.items()}
        if fields.get("diagnosis") is not None:
            fields["diagnosis"] = WindowDiagnosis.from_dict(fields["diagnosis"])
        if (parts := data.get("per_optimizer")) is not None:
            fields["per_optimizer"] = {name: cls.from_dict(part) for name, part in parts.items()}
        return cls(**fields)

    def __str__(self) -> str:
        rates = ",".join(format_number(rate) for rate in self.lr)
        parts = self.per_optimizer or {}
        name = f" {next(iter(parts))}" if len(parts) == 1 else ""
        line = (
            f"[step {self.step}{name}] loss={format_number(self.loss)}"
            f" scale={self.loss_scale:.10g} grad_norm={format_number(self.grad_norm)} lr={rates}"
        )
        if self.skipped:
            line += f" skipped=True reason={self.reason}"
        for name, part in parts.items():
            if len(parts) > 1 and part.skipped:
                line += f" {name}: skipped=True reason={part.reason}"
        return f"{line} fallback={self.fallback}" if self.fallback else line


def format_number(value: float) -> str:
    """Three significant digits, in the shorter of the plain and the scientific spelling.

    Example:
        >>> format_number(0.4182), format_number(3e-4), format_number(1.5e6)
        ('0.418', '3e-4', '1.5e6')
    """
    if not math.isfinite(value) or value == 0 or 1e-2 <= abs(value) < 1e5:
        return f"{value:.3g}" if abs(value) < 999.5 or not math.isfinite(value) else f"{value:.0f}"
    mantissa, exponent = f"{value:.2e}".split("e")
    if "." in mantissa:
        mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{mantissa}e{int(exponent)}"
