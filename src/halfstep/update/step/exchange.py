"""From what each rank has measured to what all ranks decide by, in one collective per step.

For every optimizer of the step the ranks add up eight numbers in float64, and one for each metric:

====  ===========================================================================================
0     ranks whose gradients are not finite, and 65,536 times the ranks that have gradients at all
1     square sum of the gradients that a rank owns; 0 where one of them is not finite
2     square sum of the gradients that all ranks hold alike
3     the same on rank 0 alone
4, 5  losses of the window, and what they are divided by
6, 7  a code of what all ranks must agree on, and its square
8...  metrics
====  ===========================================================================================

A sum of finite numbers is bit-equal on all ranks, so everything that is decided from it is decided
alike: whether the update happens, the clip coefficient, the loss scale. No NaN goes into numbers 1
to 3, because some libraries drop it in a maximum. ``size * (sum of squares of the codes)`` equals
the square of their sum if and only if all codes are equal, exactly, up to 4,096 ranks. Where all
ranks hold the same gradients number 2 is `size` times number 3; if not, a parameter is outside of
its wrapper or the last backward was not exchanged.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from halfstep.update.decision.measured import Measured, carried, check_agreement
from halfstep.update.optimizers.square_sums import Squares
from halfstep.update.ranks.ranks import Ranks
from halfstep.update.readback import Number, on_device

_FIXED = 8  # numbers of an optimizer before its metrics
_PRESENT = 65536.0  # in number 0, for a rank that has gradients
_CODES = 1 << 14
_TOLERANCE = 1e-6  # of square sums that should be the same; rounding of other CPUs is far below


def exchange(measured: Sequence[Measured], ranks: Ranks, state: object) -> None:
    """Put the numbers of all ranks in the place of this rank's.

    Args:
        measured: Of the optimizers that step together; written.
        ranks: Several.
        state: What must be the same on all ranks, beside names, kinds and loss scales.

    Raises:
        BadValueError: The ranks do not agree, where the numbers are on the host; numbers on a
            device are checked when they are read (`Measured.agreement`).
        PeerFailed: Another rank has failed.

    Syncs: no on a device; on a CPU the collective itself waits for the other ranks.
    """
    rows = [_row(each, ranks, (state, len(measured))) for each in measured]
    sizes = [len(row) for row in rows]
    flat = [number for row in rows for number in row]
    added: Sequence[Number]
    if all(each.squares is not None and each.squares.are_known for each in measured):
        numbers = torch.tensor([float(n) for n in flat], dtype=torch.float64)
        added = ranks.sum(numbers.to(ranks.device)).tolist()
    else:
        added = ranks.sum(torch.stack([on_device(n, ranks.device) for n in flat])).unbind()
    start = 0
    for each, size in zip(measured, sizes, strict=True):
        _take(each, added[start : start + size], ranks)
        start += size


def _row(measured: Measured, ranks: Ranks, state: object) -> list[Number]:
    squares = measured.squares
    assert squares is not None
    bad, owned, shared = _finite(squares, ranks)
    presence = _PRESENT if measured.has_gradients else 0.0
    loss, weight, *metrics = measured.sums
    code = _code(measured, state)
    return [
        bad + presence,
        owned,
        shared,
        shared if ranks.rank == 0 else 0.0,
        loss,
        weight,
        code,
        code * code,
        *metrics,
    ]


def _finite(squares: Squares, ranks: Ranks) -> tuple[Number, Number, Number]:
    """1 if a square sum is not finite, and both; 0 in their places then."""
    both = squares.owned + squares.shared
    if squares.are_known:
        is_bad = not math.isfinite(both)
        return float(is_bad), *((0.0, 0.0) if is_bad else squares)
    finite = torch.isfinite(on_device(both, ranks.device))
    owned, shared = (
        torch.where(finite, on_device(part, ranks.device), 0.0)
        if isinstance(part, Tensor) or part
        else 0.0
        for part in squares
    )
    return torch.logical_not(finite), owned, shared


def _code(measured: Measured, state: object) -> Number:
    """A number below 2 ** 14 of what all ranks must agree on."""
    scale = measured.loss_scale
    told = (measured.name, measured.metric_names, measured.has_divisor, measured.nominal, state)
    if not isinstance(scale, Tensor):
        return float(zlib.crc32(repr((*told, float(scale))).encode()) % _CODES)
    known = zlib.crc32(repr(told).encode()) % _CODES
    return (torch.log2(scale.double()) * 1024 + known).floor().remainder(_CODES)


def _take(measured: Measured, added: Sequence[Number], ranks: Ranks) -> None:
    count, owned, shared, shared_once, loss, weight, code, square = added[:_FIXED]
    copies = ranks.copies_of_data
    weight, loss, *metrics = (
        number if copies == 1 else number / copies for number in (weight, loss, *added[_FIXED:])
    )
    disagree = ranks.size * square != code * code
    apart: Any = abs(ranks.size * shared_once - shared)
    differ = apart > _TOLERANCE * shared
    if isinstance(count, Tensor):
        any_bad = count.remainder(_PRESENT) > 0
        agreement = disagree + 2.0 * (differ & ~any_bad)
        total = on_device(owned + shared_once, ranks.device)
        norm: Number = torch.where(any_bad | (agreement > 0), math.inf, total.sqrt())
        measured.agreement = agreement
        measured.has_gradients = True  # on some rank, or else there is nothing to be said later
    else:
        present, bad_ranks = divmod(count, _PRESENT)
        check_agreement(float(disagree) + 2.0 * float(differ and not bad_ranks))
        measured.has_gradients = present > 0
        norm = math.inf if bad_ranks else math.sqrt(owned + shared_once)
    measured.norm = norm
    measured.weight = weight
    measured.sums = [loss, weight, *metrics]
    if not measured.is_true:
        measured.unit = carried(measured.loss_scale, weight, measured.nominal * ranks.averaged_over)


def exchange_norm(squares: Squares, ranks: Ranks) -> Number:
    """The norm over all ranks, and nothing else; inf where it is not finite on one of them.

    Args:
        squares: Of this rank.
        ranks: Several.

    Returns:
        A float where the host knows the square sums, else a 0-d float64 tensor.

    Syncs: no on a device; on a CPU the collective itself waits for the other ranks.
    """
    bad, owned, shared = _finite(squares, ranks)
    mine = [bad, owned, shared if ranks.rank == 0 else 0.0]
    added = ranks.sum(torch.stack([on_device(each, ranks.device) for each in mine]))
    norm = torch.where(added[0] > 0, math.inf, (added[1] + added[2]).sqrt())
    return float(norm) if squares.are_known else norm
