"""`StepRecord`: what one attempted update did."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from halfstep.records.floats import decode_floats, encode_floats
from halfstep.records.window_diagnosis import WindowDiagnosis

_NUMBERS = (
    "loss",
    "divisor",
    "grad_norm",
    "clip_coef",
    "loss_scale",
    "next_loss_scale",
    "consumed",
    "batch",
    "zero_gradient_fraction",
)


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

    @property
    def scalars(self) -> dict[str, float]:
        """All numbers of the step in one flat dict, for loggers and JSON lines.

        Values are Python floats and ints; what is ``None`` and what is text has no key. inf and
        NaN stay as they are, because a norm that overflowed is what a plot should show:
        TensorBoard takes them, and `json.dumps` writes ``Infinity`` and ``NaN``, which Python
        reads and strict JSON does not. For that there is `to_dict`, which writes strings.

        ``dict(record)`` is the same.

        Returns:
            ``step``, ``skipped`` (0 or 1), ``loss``, ``grad_norm``, ``clip_coef``, ``loss_scale``,
            ``next_loss_scale``, ``lr`` (of the first group; ``lr/1``, ``lr/2`` of further ones),
            ``consumed``; where they are known ``divisor``, ``batch``, ``zero_gradient_fraction``,
            ``metrics/NAME`` and ``lost_updates/PARAMETER``; and with several optimizers all of it
            for each, as ``OPTIMIZER/grad_norm``.

        Example:
            >>> record = StepRecord(1, True, None, 0.5, None, {"accuracy": 0.25}, 2.0, 1.0,
            ...     8.0, 8.0, [0.1, 0.2], 0.0)
            >>> [f"{name}={value}" for name, value in record.scalars.items()][-4:]
            ['consumed=0.0', 'lr=0.1', 'lr/1=0.2', 'metrics/accuracy=0.25']
        """
        found: dict[str, float] = {"step": self.step, "skipped": int(self.skipped)}
        found |= {n: v for n in _NUMBERS if (v := getattr(self, n)) is not None}
        found |= {f"lr/{i}" if i else "lr": rate for i, rate in enumerate(self.lr)}
        found |= {f"metrics/{name}": value for name, value in self.metrics.items()}
        lost = self.lost_updates or {}
        found |= {f"lost_updates/{name}": share for name, share in lost.items()}
        for name, part in (self.per_optimizer or {}).items():
            found |= {f"{name}/{key}": value for key, value in part.scalars.items()}
        return found

    def __iter__(self) -> Iterator[tuple[str, float]]:
        """Names and values of the `scalars`: ``dict(record)`` is the flat dict of numbers."""
        return iter(self.scalars.items())

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
