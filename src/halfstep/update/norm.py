"""The gradient norm: one read of the gradients, whose finiteness is the overflow check.

torch's own norms are wrong by 500 eps at 3 million elements (one running float32 sum). Here every
tensor is seen as rows of about 2,000 elements: float32 inside a row, float64 across rows. That
costs no more time and is right to about 1 eps, for constant gradients too.
"""

from __future__ import annotations

import functools
import math
import operator
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
    dtypes = {grad.dtype for grad in grads}
    if any(map(_is_sparse, grads)) or any(dtype.is_complex for dtype in dtypes):
        grads = [_real_values(grad) for grad in grads]
        dtypes = {grad.dtype for grad in grads}
    return _host_norm(grads, dtypes) if all(map(_is_cpu, grads)) else _device_norm(grads)


_is_sparse = operator.attrgetter("is_sparse")
_is_cpu = operator.attrgetter("is_cpu")


def _real_values(grad: Tensor) -> Tensor:
    value = values_of(grad)
    return torch.view_as_real(value) if value.is_complex() else value


def _host_norm(values: Sequence[Tensor], dtypes: set[torch.dtype]) -> float:
    narrow = values
    total = 0.0
    if dtypes != {torch.float32}:
        narrow = [value for value in values if value.dtype is torch.float32]
        total = _wide_square([value for value in values if value.dtype is not torch.float32])
    small = [value for value in narrow if value.numel() < _SMALL]
    rows: list[Tensor] = []
    if small:
        _append_row_norms(rows, _flatten_dense_tensors(small))
    if len(small) < len(narrow):
        for value in narrow:
            if value.numel() >= _SMALL:
                _append_row_norms(rows, value)
    if rows:
        joined = torch.cat(rows).double()
        total += float(torch.dot(joined, joined))
    if _SAFE_SQUARES[0] < total < _SAFE_SQUARES[1]:
        return math.sqrt(total)
    return _careful_norm(values)


def _append_row_norms(rows: list[Tensor], value: Tensor) -> None:
    if not value.is_contiguous():
        value = value.reshape(-1)
    size = value.numel()
    width = _row_width(size)
    if rest := size % width:
        flat = value.view(-1)
        rows.append(torch.linalg.vector_norm(flat[size - rest :]).view(1))
        value = flat[: size - rest]
    if value.numel():
        rows.append(torch.linalg.vector_norm(value.view(-1, width), dim=1))


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
