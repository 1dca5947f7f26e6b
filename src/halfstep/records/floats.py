"""Floats in strict JSON, which has no inf and no NaN."""

from __future__ import annotations

import math
from typing import Any

_NAMES = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def encode_floats(value: Any) -> Any:
    """`value` with every non-finite float, at any depth, replaced by its name."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, dict):
        return {key: encode_floats(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode_floats(item) for item in value]
    return value


def decode_floats(value: Any) -> Any:
    """The inverse of `encode_floats`, for values that hold no other text."""
    if isinstance(value, str):
        return _NAMES.get(value, value)
    if isinstance(value, dict):
        return {key: decode_floats(item) for key, item in value.items()}
    if isinstance(value, list):
        return [decode_floats(item) for item in value]
    return value
