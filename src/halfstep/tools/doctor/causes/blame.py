"""From a result that is wrong to the op at which it starts to be wrong."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from halfstep.numerics import FP16
from halfstep.records import OpRecord
from halfstep.tools.doctor.runs.passes import Pass
from halfstep.tools.doctor.runs.results import tolerance
from halfstep.tracing.against import Against, Difference, format_of

Mechanism = Literal["overflow", "underflow", "rounding"]

_LEAST = 0.2  # relative error of an op that is to blame for a difference
_JUMP = 8  # times the error of its inputs
_MOSTLY = 0.25
# They hand values on and round none, but for a cast from FP32, where the walk ends anyway.
_MOVES = frozenset(f"aten.{name}" for name in (
    "_to_copy", "clone", "copy", "cat", "stack", "index", "index_select", "gather", "repeat",
))  # fmt: skip


_CHOICES = frozenset((
    "index", "index_put", "index_select", "index_add", "gather", "scatter", "scatter_add",
    "select_backward", "slice_backward", "embedding", "embedding_dense_backward", "max", "min",
    "amax", "amin", "topk", "sort", "where", "masked_fill", "nll_loss_backward",
    "nll_loss2d_backward", "max_pool2d_with_indices_backward",
))  # fmt: skip
_CHOOSING_NODES = ("select", "slice", "index", "gather", "scatter", "nllloss", "topk", "sort")


@dataclass(frozen=True)
class Start:
    """Where a difference starts.

    Attributes:
        op: The op that made it: for lost digits the one that rounded, not the one that shows it.
        difference: Of its result.
        mechanism: How it comes about.
        shown_by: The op whose result is wrong though its inputs seem right; mostly `op` itself.
        error: Relative error of that one's result.
        error_before: Largest relative error among its inputs.
    """

    op: OpRecord
    difference: Difference
    mechanism: Mechanism
    shown_by: OpRecord
    error: float
    error_before: float


def starts_of_difference(low: Pass, against: Against, ends: Iterable[int]) -> list[Start]:
    """The ops upstream of `ends` whose results are wrong though their inputs are right.

    An error that grows a little in every op is the format's accuracy; one that is there all at
    once has a place.

    Args:
        low: The pass.
        against: The same beside FP32.
        ends: Indices of results that are further from FP32 than rounding explains.

    Returns:
        In the order in which they ran.
    """
    least = max(2 * tolerance(low.policy.row), _LEAST)
    found = []
    for position in sorted(_upstream(against, ends)):
        before = _error_before(against, position)
        if before is None or not low.lineage.origins[low.lineage.seen[position].first]:
            continue  # what is made of nothing is a constant, such as the limit of a dtype
        if _chooses(low.ops[position]):
            continue
        error = against.differences[position].relative_error
        if error >= max(least, _JUMP * before):
            found.append(_start(low, against, position, before))
    return found


def _chooses(op: OpRecord) -> bool:
    """Whether an op places values by indices or conditions: it rounds none.

    Its result differs where another choice was made (a matching, a maximum, a sort), which is no
    fault of the format: two of the choices were equally good.
    """
    name = op.op.rpartition(".")[2].strip("_")
    node = op.gradient_of.removesuffix("Backward0").lower()
    return name in _CHOICES or any(node.startswith(part) for part in _CHOOSING_NODES)


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


def start_of_invalid(low: Pass, against: Against, position: int) -> Start | None:
    """The difference that made an op fail in a format which FP32 computes.

    Args:
        low: The pass.
        against: The same beside FP32.
        position: Index of a result of the op that failed.
    """
    if (start := start_of_loss(low, against, position)) is not None:
        return start
    starts = [
        start
        for start in starts_of_difference(low, against, against.parents(position))
        if start.shown_by.index != position
    ]
    return starts[0] if starts else None


def _upstream(against: Against, ends: Iterable[int]) -> set[int]:
    """`ends` and all results that they were made from."""
    open_ = list(ends)
    seen = set(open_)
    while open_:
        for parent in against.parents(open_.pop()):
            if parent not in seen:
                seen.add(parent)
                open_.append(parent)
    return seen


def _error_before(against: Against, position: int) -> float | None:
    """Largest relative error among the inputs; ``None`` where the result has no partner."""
    if position not in against.differences:
        return None
    known = [against.differences[p] for p in against.parents(position) if p in against.differences]
    return max((found.relative_error for found in known), default=0.0)


def _start(low: Pass, against: Against, position: int, before: float) -> Start:
    shown_by, shown = low.ops[position], against.differences[position]
    mechanism = _mechanism(shown_by, shown)
    made = position
    if mechanism == "rounding" and position not in low.lineage.scaled:
        made = _rounding_behind(low, against, position)
    return Start(
        low.ops[made],
        against.differences[made],
        mechanism,
        shown_by,
        shown.relative_error,
        before,
    )


def _rounding_behind(low: Pass, against: Against, position: int) -> int:
    """The nearest 16-bit result upstream: what an op amplifies is that one's rounding.

    Args:
        low: The pass.
        against: The same beside FP32.
        position: Of the op that shows the error.

    Returns:
        `position` itself if its inputs are not rounded.
    """
    here, seen = position, {position}
    found: int | None = None
    while True:
        parents = [p for p in against.parents(here) if p in against.differences and p not in seen]
        seen.update(parents)
        rounded = [p for p in parents if against.differences[p].relative_error > 0]
        if not rounded:
            return position if found is None else found
        best = max(rounded, key=lambda p: _absolute(against.differences[p]))
        if low.ops[best].dtype in ("float16", "bfloat16"):
            if low.ops[best].op not in _MOVES:
                return best
            found = best
        elif found is not None:
            return found
        here = best


def _absolute(difference: Difference) -> float:
    return difference.relative_error * max(difference.reference_largest, 1e-30)


def _mechanism(op: OpRecord, difference: Difference) -> Mechanism:
    format = format_of(op.dtype) or FP16
    if not op.is_finite or difference.reference_largest > format.largest:
        return "overflow"
    share = max(difference.lost_fraction, 1e-9)
    mostly = difference.underflow_fraction >= _MOSTLY or difference.underflow_fraction >= share / 2
    return "underflow" if difference.underflow_fraction and mostly else "rounding"
