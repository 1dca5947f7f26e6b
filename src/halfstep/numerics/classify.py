"""What a number becomes in a format: the question behind every loss scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from halfstep.numerics.formats import Format
from halfstep.records import BadValueError

Category = Literal["zero", "exact", "rounded", "subnormal", "underflow", "overflow", "inf", "nan"]


@dataclass(frozen=True)
class Classified:
    """One value after scaling and rounding.

    Attributes:
        value: The value that was asked about.
        scale: The loss scale it was multiplied by.
        scaled: ``value * scale`` in float64.
        rounded: What `scaled` becomes in the format (inf, or NaN in E4M3, on overflow).
        category: ``zero``, ``exact``, ``rounded`` (normal, bits lost), ``subnormal`` (below the
            smallest normal, whether or not bits were lost), ``underflow`` (not 0, becomes 0),
            ``overflow`` (finite, becomes inf), and ``inf`` and ``nan`` for inputs that are.
        error: ``|rounded - scaled| / |scaled|``; 1 for underflow, inf for overflow, 0 where exact.
        sign, exponent, mantissa: The stored fields as strings of 0 and 1.
    """

    value: float
    scale: float
    scaled: float
    rounded: float
    category: Category
    error: float
    sign: str
    exponent: str
    mantissa: str


def classify(
    values: float | Sequence[float] | Tensor, format: Format, scale: float = 1.0
) -> list[Classified]:
    """Say what each value becomes in `format` after multiplication by `scale`.

    Args:
        values: A number, a sequence of numbers, or a tensor of any shape (flattened).
        format: A row such as `halfstep.FP16`.
        scale: Loss scale, positive and finite.

    Returns:
        One `Classified` per value, in order.

    Raises:
        BadValueError: `scale` is not positive and finite.

    Syncs: yes, it reads the values.

    Example:
        >>> import halfstep as hs
        >>> [c.category for c in hs.classify([2**-30, 2.0], hs.FP16, scale=2**16)]
        ['exact', 'overflow']
    """
    if not (math.isfinite(scale) and scale > 0):
        raise BadValueError(f"scale must be positive and finite, got {scale}.")
    given = values if isinstance(values, Tensor) else torch.tensor(values, dtype=torch.float64)
    flat = given.detach().to("cpu", torch.float64).reshape(-1)
    scaled = flat * scale
    rounded = format.round(scaled)
    rows = zip(flat.tolist(), scaled.tolist(), rounded.tolist(), strict=True)
    return [_row(value, scale, was, now, format) for value, was, now in rows]


def _row(value: float, scale: float, scaled: float, rounded: float, format: Format) -> Classified:
    sign, exponent, mantissa = format.encode(rounded)
    category = _category(value, scaled, rounded, format)
    return Classified(
        value=value,
        scale=scale,
        scaled=scaled,
        rounded=rounded,
        category=category,
        error=_error(category, scaled, rounded),
        sign=str(sign),
        exponent=format_bits(exponent, format.exponent_bits),
        mantissa=format_bits(mantissa, format.mantissa_bits),
    )


def _category(value: float, scaled: float, rounded: float, format: Format) -> Category:
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf"
    if value == 0:
        return "zero"
    if not math.isfinite(rounded):
        return "overflow"
    if rounded == 0:
        return "underflow"
    if abs(rounded) < format.smallest_normal:
        return "subnormal"
    return "exact" if rounded == scaled else "rounded"


def _error(category: Category, scaled: float, rounded: float) -> float:
    if category in ("overflow", "underflow"):
        return math.inf if category == "overflow" else 1.0
    if rounded == scaled or not math.isfinite(scaled):
        return 0.0
    return abs(rounded - scaled) / abs(scaled)


def format_bits(field: int, width: int) -> str:
    """`field` in binary, `width` digits wide."""
    return f"{field:0{width}b}"
