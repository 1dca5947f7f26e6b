"""The gradient norm: one read of the gradients, whose finiteness is the overflow check.

torch's own norms are wrong by 500 eps at 3 million elements (one running float32 sum). Here every
tensor is seen as rows of about 2,000 elements: float32 inside a row, float64 across rows. That
costs no more time and is right to about 1 eps, for constant gradients too.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors

from halfstep.update.gradients import values_of

_SMALL = 8192  # elements; smaller gradients are laid side by side first
_PIECE = 1 << 20  # elements
# Outside of this the sum of float32 squares may have lost subnormal terms or overflowed.
_SAFE_SQUARES = (1e-28, 1e300)


def grad_norm(grads: Sequence[Tensor]) -> float | Tensor:
    """2-norm over all gradients together.

    Args:
        grads: Dense or coalesced sparse tensors of any floating or complex dtype.

    Returns:
        A float if every gradient is on the CPU, else a 0-d float64 tensor on the device of the
        first gradient that is not. inf or NaN if and only if an element is (float32 squares that
        overflow although the elements are finite are looked at again in float64).

    Syncs: no.
    """
    values = [_real_values(grad) for grad in grads]
    if all(value.device.type == "cpu" for value in values):
        return _host_norm(values)
    return _device_norm(values)


def _real_values(grad: Tensor) -> Tensor:
    value = values_of(grad)
    return torch.view_as_real(value) if value.is_complex() else value


def _host_norm(values: Sequence[Tensor]) -> float:
    total = 0.0
    small: dict[torch.dtype, list[Tensor]] = {}
    rows: list[Tensor] = []
    for value in values:
        if value.dtype is torch.float32 and value.numel() >= _SMALL:
            rows += _row_norms(value)
        else:
            small.setdefault(value.dtype, []).append(value)
    for dtype, group in small.items():
        if dtype is torch.float32:
            rows += _row_norms(_flatten_dense_tensors(group))
        else:
            total += _wide_square(group)
    if rows:
        joined = torch.cat(rows).double()
        total += float(torch.dot(joined, joined))
    if _SAFE_SQUARES[0] < total < _SAFE_SQUARES[1]:
        return math.sqrt(total)
    return _careful_norm(values)


def _row_norms(value: Tensor) -> list[Tensor]:
    flat = value.reshape(-1)
    size = flat.numel()
    width = _row_width(size)
    rest = size % width
    rows = []
    if size > rest:
        body = flat[: size - rest] if rest else flat
        rows.append(torch.linalg.vector_norm(body.view(-1, width), dim=1))
    if rest:
        rows.append(torch.linalg.vector_norm(flat[size - rest :]).view(1))
    return rows


@functools.lru_cache(maxsize=4096)
def _row_width(size: int) -> int:
    """A width near 2,000 that leaves no rest, where there is one."""
    exact = (width for width in range(4096, 1023, -1) if size % width == 0)
    return next(exact, 2048)


def _wide_square(values: Sequence[Tensor]) -> float:
    """Sum of squares in float64, a piece at a time so that the copy stays in the cache."""
    total = 0.0
    for value in values:
        for piece in value.reshape(-1).split(_PIECE):
            wide = piece.double()
            total += float(torch.dot(wide, wide))
    return total


def _careful_norm(values: Sequence[Tensor]) -> float:
    """The norm of gradients whose squares leave the range: relative to the largest element."""
    peak = max((float(torch.linalg.vector_norm(v, math.inf)) for v in values if v.numel()), default=0)
    if peak == 0 or not math.isfinite(peak):
        return peak
    total = 0.0
    for value in values:
        for piece in value.reshape(-1).split(_PIECE):
            wide = piece.double() / peak
            total += float(torch.dot(wide, wide))
    return peak * math.sqrt(total)


def _device_norm(values: Sequence[Tensor]) -> Tensor:
    # Accumulating in float64 needs no second look for the false alarm above 1.8e19, which would
    # make the host wait; the kernel is bound by memory either way.
    home = next(value.device for value in values if value.device.type != "cpu")
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for value in values:
        groups.setdefault((value.device, value.dtype), []).append(value)
    norms = [
        torch.linalg.vector_norm(torch.stack(torch._foreach_norm(group, 2, dtype=torch.float64)))
        for group in groups.values()
    ]
    if len(norms) == 1:
        return norms[0]
    return torch.linalg.vector_norm(torch.stack([norm.to(home) for norm in norms]))
