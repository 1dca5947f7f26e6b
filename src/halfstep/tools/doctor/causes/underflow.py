"""Gradients that FP16 loses at every scale it may use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from halfstep.records import Cause, GradientRange, OpRecord
from halfstep.tools.doctor.causes.given import made, some
from halfstep.tools.doctor.examination import Examination
from halfstep.tools.doctor.runs.passes import INIT_SCALE, Pass
from halfstep.tools.doctor.runs.results import results_of, run_for_results, wrong_results
from halfstep.tracing.against import Against

_NOISE = 0.05  # of a gradient in FP32: from there on nothing is lost
_GONE = 0.5  # of a gradient's norm that is left


def gradient_underflow(found: Examination, range_: GradientRange, scaled: Pass) -> list[Cause]:
    """Parameters whose gradients FP16 loses at its usual scale, and the scale that keeps them.

    Args:
        found: The passes.
        range_: The gradients' range.
        scaled: The FP16 pass with scaling.
    """
    window = range_.window("fp16")
    lost = lost_gradients(found, scaled)
    if not lost:
        is_small = not window.is_empty and 1 < (window.lowest or 0.0) <= INIT_SCALE
        return [_needs_scaling(window.lowest or 1.0, window.suggested or 1.0)] if is_small else []
    scale = _scale_that_keeps(found, scaled, lost)
    explanation = (
        f"At a loss scale of {scaled.loss_scale:g} FP16 loses the gradients of {some(lost)} to"
        " underflow, which are not 0 in FP32."
    )
    if scale is not None:
        exponent = round(math.log2(scale))
        remedy = (
            f"Start with DynamicLossScale(init_scale=2.0**{exponent},"
            f" max_scale=2.0**{max(exponent + 4, 24)}), or make the loss larger (is it divided"
            " twice?). Tried on this batch: healthy."
        )
    else:
        explanation += " A scale that would keep them overflows elsewhere, or there is none."
        remedy = "No loss scale was found that helps."
    if is_right(found, "bf16"):
        remedy += " BF16 is healthy on this batch."
    beside = found.beside.get("fp16 scaled")
    op = first_underflow(scaled, beside) if beside is not None else None
    cause = made(
        "gradient_underflow",
        "underflow",
        ("fp16", "fp16 scaled"),
        is_precision=True,
        module=op.module if op is not None else window.worst,
        evidence=f"lowest safe scale {_power(window.lowest)}, highest {_power(window.highest)}",
        explanation=explanation,
        remedy=remedy,
    )
    return [replace(cause, op=op)]


def lost_gradients(found: Examination, scaled: Pass) -> list[str]:
    """Parameters most of whose gradient is gone, and which is more than noise in FP32.

    Args:
        found: The passes.
        scaled: The FP16 pass with scaling.
    """
    wanted = found.passes["fp32"].gradients
    small = [name for name, g in scaled.gradients.items() if _is_lost(g, wanted[name])]
    if not small:
        return []
    noise = found.noise()
    return [name for name in small if noise.get(f"gradient {name}", 0.0) < _NOISE]


def is_right(found: Examination, name: str) -> bool:
    """Whether a pass ran, is finite and as FP32.

    Args:
        found: The passes.
        name: Of the pass.
    """
    low = found.passes.get(name)
    return low is not None and low.is_finite and not found.wrong(low)


def _is_lost(low: Tensor | None, wanted: Tensor | None) -> bool:
    if wanted is None or not bool(wanted.any()):
        return False
    if low is None or not bool(low.any()):
        return True
    return float(low.norm()) < _GONE * float(wanted.norm())


def _scale_that_keeps(found: Examination, scaled: Pass, lost: Sequence[str]) -> float | None:
    """The first scale, in steps of 2^4, at which no gradient is lost and none overflows."""
    wanted = found.passes["fp32"]
    for exponent in range(20, 61, 4):
        if not found.has_time("a loss scale that keeps the gradients"):
            return None
        results = run_for_results(found.subject, scaled.policy, 2.0**exponent)
        if not results.is_finite:
            return None
        is_kept = not any(_is_lost(results.gradients[n], wanted.gradients[n]) for n in lost)
        right = not wrong_results(results, results_of(wanted), scaled.policy.row, found.noise)
        if is_kept and right:
            return 2.0**exponent
    return None


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
