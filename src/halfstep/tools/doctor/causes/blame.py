"""From a result that is wrong to the op at which it starts to be wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from halfstep.numerics import FP16, Format
from halfstep.records import OpRecord
from halfstep.tools.doctor.runs.passes import Pass
from halfstep.tracing.against import Against, Difference, format_of

Mechanism = Literal["overflow", "underflow", "rounding"]

_STEPS = 16  # times eps
_LEAST = 0.2  # relative error of an op that is to blame for a difference
_JUMP = 8  # times the error of its inputs
_MOSTLY = 0.25


@dataclass(frozen=True)
class Start:
    """Where a difference starts.

    Attributes:
        op: The op.
        difference: Of its result.
        mechanism: How it comes about.
        error_before: Largest relative error among its inputs.
    """

    op: OpRecord
    difference: Difference
    mechanism: Mechanism
    error_before: float


def tolerance(format: Format) -> float:
    """The error of what matters that is more than rounding: 16 eps (1.6 % in FP16, 12 % in BF16).

    Args:
        format: Of the pass.
    """
    return _STEPS * format.eps


def start_of_difference(low: Pass, against: Against, end: int) -> Start | None:
    """The op upstream of `end` whose result is wrong though its inputs are right.

    An error that grows a little in every op is the format's accuracy; one that is there all at
    once has a place.

    Args:
        low: The pass.
        against: The same beside FP32.
        end: Index of a result whose relative error is beyond the tolerance.

    Returns:
        Of several such ops the one with the largest error, the first of them; ``None`` without.
    """
    least = max(2 * tolerance(low.policy.row), _LEAST)
    found = [
        (position, before)
        for position in _upstream(against, end)
        if (before := _error_before(against, position)) is not None
        and against.differences[position].relative_error >= max(least, _JUMP * before)
    ]
    if not found:
        return None
    position, before = max(
        found, key=lambda item: (min(against.differences[item[0]].relative_error, 1.0), -item[0])
    )
    return _start(low, against, position, before)


def _upstream(against: Against, end: int) -> list[int]:
    """`end` and all results that it was made from."""
    seen, open_ = {end}, [end]
    while open_:
        for parent in against.parents(open_.pop()):
            if parent not in seen:
                seen.add(parent)
                open_.append(parent)
    return sorted(seen)


def _error_before(against: Against, position: int) -> float | None:
    """Largest relative error among the inputs; ``None`` where the result has no partner."""
    if position not in against.differences:
        return None
    known = [against.differences[p] for p in against.parents(position) if p in against.differences]
    return max((found.relative_error for found in known), default=0.0)


def start_of_loss(low: Pass, against: Against, position: int) -> Start | None:
    """The op at which values became 0 that are not 0 in FP32, upstream of an op that then failed.

    Args:
        low: The pass.
        against: The same beside FP32.
        position: Index of a result of the op that failed.
    """
    lost = {p: d.lost_fraction for p, d in against.differences.items() if d.lost_fraction > 0}
    found, seen = None, {position}
    while True:
        parents = [p for p in against.parents(position) if p in lost and p not in seen]
        if not parents:
            break
        position = found = max(parents, key=lambda p: (lost[p], -p))
        seen.add(position)
    return None if found is None else _start(low, against, found, 0.0)


def _start(low: Pass, against: Against, position: int, before: float) -> Start:
    op, difference = low.ops[position], against.differences[position]
    return Start(op, difference, _mechanism(op, difference), before)


def _mechanism(op: OpRecord, difference: Difference) -> Mechanism:
    format = format_of(op.dtype) or FP16
    if not op.is_finite or difference.reference_largest > format.largest:
        return "overflow"
    share = max(difference.lost_fraction, 1e-9)
    mostly = difference.underflow_fraction >= _MOSTLY or difference.underflow_fraction >= share / 2
    return "underflow" if difference.underflow_fraction and mostly else "rounding"
