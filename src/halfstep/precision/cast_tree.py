"""Casting every 16-bit tensor in a structure of arguments to FP32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_HALF = (torch.float16, torch.bfloat16)


def to_fp32(value: Any) -> Any:
    """`value` with FP32 instead of FP16 and BF16 tensors in tuples, lists and mappings.

    Whatever holds no such tensor comes back as the same object, so that a cache that a module
    fills in place stays the caller's. Other objects are not looked into.
    """
    if isinstance(value, Tensor):
        return value.float() if value.dtype in _HALF else value
    if isinstance(value, dict):
        cast = {key: to_fp32(item) for key, item in value.items()}
        if all(cast[key] is item for key, item in value.items()):
            return value
        try:
            return type(value)(cast)
        except TypeError:  # a mapping with a constructor of its own, such as a defaultdict
            copy = value.copy()
            copy.update(cast)
            return copy
    if isinstance(value, (list, tuple)):
        items = [to_fp32(item) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        if hasattr(value, "_fields"):  # a named tuple, PackedSequence too
            return type(value)(*items)
        return type(value)(items)
    return value
