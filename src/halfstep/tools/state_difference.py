"""The first entry at which two saved states are not the same to the bit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class StateDifference:
    """An entry of a state that differs.

    Attributes:
        entry: Where it is, such as ``engine.loss_scales[0].scale``.
        straight: Its value in one state, as text.
        resumed: And in the other.
    """

    entry: str
    straight: str
    resumed: str

    def to_dict(self) -> dict[str, str]:
        """Plain data for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.entry} is {self.straight} straight and {self.resumed} resumed"


def first_difference(straight: Any, resumed: Any, entry: str = "") -> StateDifference | None:
    """Compare two nested states of mappings, sequences, tensors and plain values.

    Args:
        straight: One.
        resumed: The other.
        entry: Name of both.

    Returns:
        The first entry that differs, in the order of `straight`; NaN equals NaN.
    """
    return next(_differences(straight, resumed, entry), None)


def _differences(left: Any, right: Any, entry: str) -> Iterator[StateDifference]:
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        for key in [*left, *(key for key in right if key not in left)]:
            name = _member(entry, key)
            if key in left and key in right:
                yield from _differences(left[key], right[key], name)
            else:
                sides = ("there" if key in side else "missing" for side in (left, right))
                yield StateDifference(name, *sides)
    elif isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        if len(left) != len(right):
            yield StateDifference(entry, f"{len(left)} long", f"{len(right)} long")
        for index, (a, b) in enumerate(zip(left, right, strict=False)):
            yield from _differences(a, b, f"{entry}[{index}]")
    elif isinstance(left, Tensor) and isinstance(right, Tensor):
        if not _same_tensor(left, right):
            yield StateDifference(entry, *_shown_tensors(left, right))
    elif type(left) is not type(right) or not (left == right or (left != left and right != right)):
        yield StateDifference(entry, repr(left), repr(right))


def _member(entry: str, key: object) -> str:
    if isinstance(key, str) and key.isidentifier():
        return f"{entry}.{key}" if entry else key
    return f"{entry}[{key!r}]"


def _same_tensor(left: Tensor, right: Tensor) -> bool:
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    if left.layout != torch.strided or right.layout != torch.strided:
        return left.layout == right.layout and _same_tensor(left.to_dense(), right.to_dense())
    bits = [
        each.detach().cpu().reshape(-1).contiguous().view(torch.uint8) for each in (left, right)
    ]
    return torch.equal(*bits)


def _shown_tensors(left: Tensor, right: Tensor) -> tuple[str, str]:
    if left.dtype != right.dtype or left.shape != right.shape:
        left_kind, right_kind = (f"{t.dtype} of shape {tuple(t.shape)}" for t in (left, right))
        return left_kind, right_kind
    flat = [each.detach().cpu().to_dense().reshape(-1) for each in (left, right)]
    where = int((flat[0] != flat[1]).nonzero()[0]) if bool((flat[0] != flat[1]).any()) else 0
    first, second = (each[where].item() for each in flat)
    count = int((flat[0] != flat[1]).sum())
    suffix = f" at {where} ({count} of {left.numel()} values differ)" if left.numel() > 1 else ""
    return f"{first!r}{suffix}", f"{second!r}"
