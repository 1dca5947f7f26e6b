"""Everything that a step may move, for bit-for-bit comparison."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


def snapshot(*owners: nn.Module | Optimizer | Any) -> list[Any]:
    """Deep copies of the state_dict of every owner."""
    return [copy.deepcopy(owner.state_dict()) for owner in owners]


def differences(left: Any, right: Any, where: str = "") -> list[str]:
    """Paths at which two nested states are not equal to the bit (NaN equals NaN)."""
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        same = left.dtype == right.dtype and left.shape == right.shape and _same_bits(left, right)
        return [] if same else [where]
    if isinstance(left, dict) and isinstance(right, dict):
        if left.keys() != right.keys():
            return [f"{where} keys {sorted(map(str, left.keys() ^ right.keys()))}"]
        return [d for k in left for d in differences(left[k], right[k], f"{where}/{k}")]
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        if len(left) != len(right):
            return [f"{where} length"]
        pairs = enumerate(zip(left, right, strict=True))
        return [d for i, (a, b) in pairs for d in differences(a, b, f"{where}/{i}")]
    return [] if left == right and type(left) is type(right) else [where]


def _same_bits(left: Tensor, right: Tensor) -> bool:
    return (
        torch.equal(left.contiguous().view(torch.uint8), right.contiguous().view(torch.uint8))
        if (left.dim())
        else torch.equal(left.reshape(1).view(torch.uint8), right.reshape(1).view(torch.uint8))
    )
