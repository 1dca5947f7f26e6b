"""The gradient norm: one read of the gradients, whose finiteness is the overflow check.

torch's own norms are wrong by 500 eps at 3 million elements, more for constant gradients (one
running float32 sum). Here every tensor is seen as rows of about 500 elements: float32 inside a
row, float64 across rows. That is right to a few eps for any gradient and costs no more time.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence

import torch
from torch import Tensor

from halfstep.update.optimizers.gradients import values_of

_SMALL = 8192  # elements; smaller gradients are laid side by side first
_PIECE = 1 << 20  # elements
_SERIAL = 1 << 15  # elements up to which torch.cat is one plain loop, faster than any other copy
# Outside of this the sum of float32 squares may have lost subnormal terms or overflowed.
_SAFE_SQUARES = (1e-28, 1e300)

_is_sparse = operator.attrgetter("is_sparse")
_is_cpu = operator.attrgetter("is_cpu")


class GradientNorm:
    """2-norm over all gradients together; keeps a buffer for the small ones between calls."""

    def __init__(self) -> None:
        self._key: object = None
        self._buffer = torch.empty(0)
        self._views: list[Tensor] = []
        self._is_cat = False

    def __call__(
        self, grads: Sequence[Tensor], key: object = None, *, are_dense: bool = False
    ) -> float | Tensor:
        """The norm.

        Args:
            grads: Dense or coalesced sparse tensors of any floating or complex dtype.
            key: An object that stays the same as long as the shapes do; lets the buffer be kept.
            are_dense: Whether the caller knows already that none is sparse.

        Returns:
            A float if every gradient is on the CPU, else a 0-d float64 tensor on the device of
            the first gradient that is not. inf or NaN if and only if an element is (float32
            squares that overflow although the elements are finite are looked at again).

        Syncs: no.
        """
        with torch.no_grad():  # gradients may have a graph of their own (create_graph=True)
            return self._of(grads, key, are_dense)

    def _of(self, grads: Sequence[Tensor], key: object, are_dense: bool) -> float | Tensor:
        dtypes = {grad.dtype for grad in grads}
        is_sparse = not are_dense and any(map(_is_sparse, grads))
        if is_sparse or any(dtype.is_complex for dtype in dtypes):
            grads = [_real_values(grad) for grad in grads]
            dtypes = {grad.dtype for grad in grads}
            key = None  # the number of stored values may change
        if not all(map(_is_cpu, grads)):
            return _device_norm(grads)
        narrow, total = grads, 0.0
        if dtypes != {torch.float32}:
            narrow = [grad for grad in grads if grad.dtype is torch.float32]
            total = _wide_square([grad for grad in grads if grad.dtype is not torch.float32])
        rows = self._row_norms(narrow, key)
        if rows:
            joined = (torch.cat(rows) if len(rows) > 1 else rows[0]).double()
            total += float(torch.dot(joined, joined))
        if _SAFE_SQUARES[0] < total < _SAFE_SQUARES[1]:
            return math.sqrt(total)
        return _careful_norm(grads)

    def _row_norms(self, grads: Sequence[Tensor], key: object) -> list[Tensor]:
        small = [grad for grad in grads if grad.numel() < _SMALL]
        rows: list[Tensor] = []
        if small:
            _append_row_norms(rows, self._side_by_side(small, key))
        if len(small) < len(grads):
            for grad in grads:
                if grad.numel() >= _SMALL:
                    _append_row_norms(rows, grad)
        return rows

    def _side_by_side(self, small: list[Tensor], key: object) -> Tensor:
        if key is None or key is not self._key or len(small) != len(self._views):
            self._key = key
            self._make_room(small)
        if self._is_cat:
            torch.cat(small, out=self._buffer)
        else:
            torch._foreach_copy_(self._views, small)
        return self._buffer

    def _make_room(self, small: Sequence[Tensor]) -> None:
        sizes = [grad.numel() for grad in small]
        self._buffer = torch.empty(sum(sizes))
        parts = torch.split(self._buffer, sizes)
        self._views = [part.view(g.shape) for part, g in zip(parts, small, strict=True)]
        self._is_cat = sum(sizes) < _SERIAL and all(grad.dim() == 1 for grad in small)


def _real_values(grad: Tensor) -> Tensor:
    value = values_of(grad)
    return torch.view_as_real(value) if value.is_complex() else value


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
    """A width near 500 that leaves no rest, and fills whole vectors, where there is one."""
    exact = (width for width in range(640, 255, -16) if size % width == 0)
    return next(exact, 512)


def _wide_square(values: Sequence[Tensor]) -> float:
    """Sum of squares in float64, a piece at a time so that the copy stays in the cache."""
    total = 0.0
    for value in values:
        for piece in torch.split(value.reshape(-1), _PIECE):
            wide = piece.double()
            total += float(torch.dot(wide, wide))
    return total


def _careful_norm(values: Sequence[Tensor]) -> float:
    """The norm of gradients whose squares leave the range: relative to the largest element."""
    peak = max(
        (float(torch.linalg.vector_norm(v, math.inf)) for v in values if v.numel()), default=0
    )
    if peak == 0 or not math.isfinite(peak):
        return peak
    total = 0.0
    for value in values:
        for piece in torch.split(value.reshape(-1), _PIECE):
            wide = piece.double() / peak
            total += float(torch.dot(wide, wide))
    return peak * math.sqrt(total)


def _device_norm(values: Sequence[Tensor]) -> Tensor:
    # Accumulating in float64 needs no second look for the false alarm above 1.8e19, which would
    # make the host wait; the kernel is bound by memory either way.
    home = next((value.device for value in values if not value.is_cpu), values[0].device)
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for value in values:
        groups.setdefault((value.device, value.dtype), []).append(value)
    norms: list[Tensor] = [
        torch.linalg.vector_norm(torch.stack(torch._foreach_norm(group, 2, dtype=torch.float64)))
        for group in groups.values()
    ]
    if len(norms) == 1:
        return norms[0].to(home)
    joined: Tensor = torch.linalg.vector_norm(torch.stack([norm.to(home) for norm in norms]))
    return joined
