"""The way of a fault from the op that made it to the loss, or to a gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence

from halfstep.records import OpRecord, PathStep
from halfstep.tools.doctor.runs.passes import Pass
from halfstep.tracing.against import Against

_MOST = 12


def path_to_loss(low: Pass, beside: Against, op: OpRecord) -> tuple[PathStep, ...]:
    """The shortest way from an op's result to a result that the user has, one step per module.

    Args:
        low: The pass.
        beside: The same beside FP32.
        op: Where the fault began.
    """
    ends = [*low.ends, *(end for end in low.output_ends if end is not None)]
    ends += low.gradient_ends.values()
    towards: dict[int, int] = {}
    for end in ends:  # from each end upstream, until the op is met
        if (way := _way(beside, end, op.index, towards)) is not None:
            return _by_module(low, beside, way)
    return ()


def _way(beside: Against, end: int, wanted: int, towards: dict[int, int]) -> list[int] | None:
    """Indices from `wanted` to `end`; `towards` keeps what earlier searches have seen."""
    if end in towards:
        return None
    towards[end] = end
    layer = [end]
    while layer and wanted not in towards:
        after = []
        for here in layer:
            for parent in beside.parents(here):
                if parent not in towards:
                    towards[parent] = here
                    after.append(parent)
        layer = after
    if wanted not in towards:
        return None
    way = [wanted]
    while way[-1] != end:
        way.append(towards[way[-1]])
    return way


def _by_module(low: Pass, beside: Against, way: Sequence[int]) -> tuple[PathStep, ...]:
    steps: list[PathStep] = []
    for position in way:
        op = low.ops[position]
        if steps and steps[-1].module == op.module:
            continue
        found = beside.differences.get(position)
        error = found.relative_error if found is not None else math.nan
        steps.append(PathStep(op.module, op.op, error if op.is_finite else math.inf))
    if len(steps) > _MOST:  # the ends say more than the middle
        steps = [*steps[: _MOST // 2], *steps[-_MOST // 2 :]]
    return tuple(steps)
