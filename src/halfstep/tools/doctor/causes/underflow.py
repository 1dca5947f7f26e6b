"""Gradients that FP16 loses at every scale it may use."""

from __future__ import annotations

import math
from dataclasses import replace

from halfstep.records import Cause, GradientRange, OpRecord
from halfstep.tools.doctor.causes.given import made
from halfstep.tools.doctor.runs.passes import INIT_SCALE, Pass
from halfstep.tracing.against import Against


def gradient_underflow(found: GradientRange, scaled: Pass, beside: Against | None) -> list[Cause]:
    """No scale, or only one beyond the usual initial scale, keeps every layer's gradients.

    Args:
        found: The gradients' range.
        scaled: The FP16 pass with scaling.
        beside: That pass beside FP32.
    """
    window = found.window("fp16")
    if not window.is_empty and (window.lowest or 0.0) <= INIT_SCALE:
        if (window.lowest or 0.0) <= 1:
            return []
        return [_needs_scaling(window.lowest or 0.0, window.suggested or 0.0)]
    if window.is_empty:
        explanation = (
            "No loss scale is safe in FP16: at the largest one that does not overflow elsewhere,"
            f" {window.worst} loses {window.worst_fraction:.0%} of its gradient's norm."
        )
        remedy = "Use BF16, or keep the layer with the largest gradients in FP32."
    else:
        explanation = (
            f"The gradients are so small that FP16 needs a loss scale of {window.lowest:g} or more;"
            f" at {INIT_SCALE:g} the largest losses are in {window.worst}."
        )
        remedy = (
            f"Start with DynamicLossScale(init_scale={window.suggested:g}, max_scale=2**40), use"
            " BF16, or make the loss larger (is it divided twice?)."
        )
    cause = made(
        "gradient_underflow",
        "underflow",
        ("fp16", "fp16 scaled"),
        is_precision=True,
        module=window.worst,
        evidence=f"lowest safe scale {_power(window.lowest)}, highest {_power(window.highest)}",
        explanation=explanation,
        remedy=remedy,
    )
    op = first_underflow(scaled, beside) if beside is not None else None
    return [replace(cause, op=op, module=op.module) if op is not None else cause]


def first_underflow(scaled: Pass, beside: Against) -> OpRecord | None:
    """The first backward op most of whose values underflow though those of its inputs do not.

    Args:
        scaled: The FP16 pass.
        beside: That pass beside FP32.
    """

    def share(position: int) -> float:
        found = beside.differences.get(position)
        return found.underflow_fraction if found is not None else 0.0

    for op in scaled.ops:
        mostly = op.phase == "backward" and share(op.index) > 0.5
        if mostly and all(share(p) <= 0.5 for p in beside.parents(op.index)):
            return op
    return None


def _needs_scaling(lowest: float, suggested: float) -> Cause:
    return made(
        "gradient_underflow",
        "underflow",
        ("fp16",),
        is_precision=True,
        severity="note",
        evidence=f"safe from a scale of {_power(lowest)}",
        explanation="Without a loss scale FP16 loses gradients to underflow; with one it does not.",
        remedy=f"Train with loss scaling, as halfstep does for FP16; start at {suggested:g}.",
    )


def _power(value: float | None) -> str:
    return "none" if value is None else f"2^{round(math.log2(value))}"
