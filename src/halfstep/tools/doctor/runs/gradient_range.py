"""Exponents of the gradients in FP32, and the loss scales at which a format holds them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from halfstep.numerics import BF16, E4M3, E5M2, FP16, ExponentCounts, Format, Magnitudes
from halfstep.records import GradientRange, GradientRow, ScaleWindow
from halfstep.tools.doctor.runs.one_batch import OneBatch
from halfstep.tools.doctor.runs.passes import INIT_SCALE, Pass
from halfstep.tracing.against import Against

TOLERANCE = 0.01
_EXPONENTS = range(-64, 65)


def gradient_range(
    subject: OneBatch, fp32: Pass, low: Pass | None, beside: Against | None
) -> GradientRange:
    """The gradients of the FP32 pass, by parameter and by module.

    Args:
        subject: Model and batch.
        fp32: The FP32 pass.
        low: A 16-bit pass, which says which backward ops run in 16 bits; ``None`` takes all.
        beside: That pass beside FP32.
    """
    parameters = [
        _parameter_row(name, subject.owner(name), gradient)
        for name, gradient in fp32.gradients.items()
    ]
    activations = [
        _row(module, "activation", module, magnitudes, largest)
        for module, magnitudes, largest in _by_module(fp32, low, beside)
    ]
    formats = (FP16, BF16, E4M3, E5M2)
    return GradientRange(
        rows=(*parameters, *activations),
        windows=tuple(scale_window(activations, format) for format in formats),
    )


def scale_window(rows: Sequence[GradientRow], format: Format) -> ScaleWindow:
    """The loss scales at which rows fit into a format.

    Args:
        rows: Activation gradients, not scaled.
        format: The format.
    """
    largest = max((row.largest for row in rows), default=0.0)
    highest = _highest(largest, format)
    lowest = next(
        (k for k in _EXPONENTS if all(lost_norm(row, format, k) <= TOLERANCE for row in rows)), None
    )
    suggested = None
    if highest is not None and lowest is not None and lowest <= highest:
        if format.exponent_bits >= 8 and lowest <= 0 <= highest:
            suggested = 0
        else:
            suggested = max(min(highest - 2, round(math.log2(INIT_SCALE))), lowest)
    looked_at = suggested if suggested is not None else highest if highest is not None else 0
    worst = max(rows, key=lambda row: lost_norm(row, format, looked_at), default=None)
    return ScaleWindow(
        format=format.name,
        lowest=None if lowest is None else 2.0**lowest,
        highest=None if highest is None else 2.0**highest,
        suggested=None if suggested is None else 2.0**suggested,
        tolerance=TOLERANCE,
        underflow={k: _underflow(rows, format, k) for k in range(-8, 33)},
        worst=worst.name if worst is not None else "",
        worst_fraction=lost_norm(worst, format, looked_at) if worst is not None else 0.0,
    )


def lost_norm(row: GradientRow, format: Format, scale_exponent: int) -> float:
    """Share of a gradient's norm in values that underflow at a scale.

    Args:
        row: The gradient.
        format: The format.
        scale_exponent: Of the scale, a power of two.
    """
    top = max(row.histogram, default=0)
    energy = {e: n * 4.0 ** (e - top) for e, n in row.histogram.items()}
    kept = math.log2(format.smallest_subnormal) - 1 - scale_exponent
    total = sum(energy.values())
    lost = sum(value for e, value in energy.items() if e < kept)
    return math.sqrt(lost / total) if total else 0.0


def _highest(largest: float, format: Format) -> int | None:
    if not largest:
        return max(_EXPONENTS)
    exponent = math.floor(math.log2(format.largest / largest))
    return exponent if exponent in _EXPONENTS else None if exponent < 0 else max(_EXPONENTS)


def _underflow(rows: Iterable[GradientRow], format: Format, scale_exponent: int) -> float:
    found = [Magnitudes(row.histogram, 0, 0) for row in rows]
    count = sum(m.num_nonzero for m in found)
    return sum(m.underflowing(format, scale_exponent) for m in found) / count if count else 0.0


def _parameter_row(name: str, owner: str, gradient: Tensor | None) -> GradientRow:
    if gradient is None:
        return GradientRow(name, "parameter", True, owner, 0.0, math.nan, math.nan, {})
    finite = gradient[torch.isfinite(gradient)]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    return _row(name, "parameter", owner, ExponentCounts.of(gradient).read(), largest)


def _row(name: str, kind: str, owner: str, found: Magnitudes, largest: float) -> GradientRow:
    return GradientRow(
        name=name,
        kind=kind,
        is_none=False,
        owner=owner,
        zero_fraction=found.num_zero / max(1, found.num_values),
        smallest=2.0 ** min(found.histogram) if found.histogram else math.nan,
        largest=largest,
        histogram=found.histogram,
    )


def _by_module(
    fp32: Pass, low: Pass | None, beside: Against | None
) -> list[tuple[str, Magnitudes, float]]:
    """Backward results of 16-bit ops, joined by module in the order of the backward pass."""
    positions: list[int] = []
    if low is not None and beside is not None:
        dtype = str(low.policy.row.dtype).removeprefix("torch.")
        halves = (op for op in low.ops if op.index in low.lineage.scaled and op.dtype == dtype)
        positions = sorted({beside.partner[o.index] for o in halves if o.index in beside.partner})
    if not positions:
        positions = sorted(fp32.lineage.scaled)
    joined: dict[str, tuple[Magnitudes, float]] = {}
    for position in positions:
        op = fp32.ops[position]
        if not op.is_finite:
            continue
        found = _weighed(
            ExponentCounts.of(fp32.lineage.samples[position]).read(), math.prod(op.shape)
        )
        name = op.module or "the loss function"
        before, largest = joined.get(name, (Magnitudes({}, 0, 0), 0.0))
        joined[name] = (_sum(before, found), max(largest, op.largest))
    return [(name, magnitudes, largest) for name, (magnitudes, largest) in joined.items()]


def _weighed(found: Magnitudes, count: int) -> Magnitudes:
    """A sample's counts as those of the whole tensor."""
    factor = max(1, round(count / max(1, found.num_values)))
    histogram = {e: n * factor for e, n in found.histogram.items()}
    return Magnitudes(histogram, found.num_zero * factor, found.num_non_finite * factor)


def _sum(left: Magnitudes, right: Magnitudes) -> Magnitudes:
    exponents = sorted({*left.histogram, *right.histogram})
    histogram = {e: left.histogram.get(e, 0) + right.histogram.get(e, 0) for e in exponents}
    zeros = left.num_zero + right.num_zero
    return Magnitudes(histogram, zeros, left.num_non_finite + right.num_non_finite)
