"""`OpTrace`: the tracer that a whole pass can afford."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Literal

import torch
from torch import Tensor

from halfstep.numerics import ExponentCounts, Format
from halfstep.records import OpRecord, RangeRecord, TraceRecord
from halfstep.tracing.magnitudes import LargestMagnitudes
from halfstep.tracing.module_paths import Models, OnResult
from halfstep.tracing.op_walk import OpWalk, Seen
from halfstep.tracing.source_lines import line_text

Level = Literal["standard", "full"]


class OpTrace(OpWalk):
    """Largest magnitude of every result: one ``aminmax`` each, read once at the end.

    Args:
        model: Whose modules are named.
        format: At level "full": count each result's exponents against this format.
        on_result: As for `ModulePaths`.
    """

    def __init__(
        self,
        model: Models = None,
        format: Format | None = None,
        on_result: OnResult | None = None,
    ) -> None:
        super().__init__(model, on_result)
        self._largest = LargestMagnitudes()
        self._format = format
        self._exponents: list[Tensor] = []

    def look(self, position: int, result: Tensor) -> None:
        """Take the result's extremes."""
        self._largest.add(result)
        if self._format is not None:
            self._exponents.append(ExponentCounts.of(result).counts)

    def read(self) -> TraceRecord:
        """All ops as records; shares of finite values are known where they are 1.

        Syncs: yes, once.
        """
        largest = self._largest.read()
        counts = torch.stack(self._exponents).cpu() if self._exponents else None
        ranges = [None] * len(largest) if counts is None else [
            range_record(ExponentCounts(row), self._format) for row in counts
        ]  # fmt: skip
        before: Counter[tuple[object, ...]] = Counter()
        ops = []
        for i, (seen, value, range_) in enumerate(zip(self.seen, largest, ranges, strict=True)):
            ops.append(op_record(i, seen, value, range_, before))
        return TraceRecord(tuple(ops))


def op_record(
    index: int,
    seen: Seen,
    largest: float,
    range_: RangeRecord | None,
    before: Counter[tuple[object, ...]],
) -> OpRecord:
    """The record of one result.

    Args:
        index, largest, range_: As in `OpRecord`.
        seen: What the walk noted.
        before: Counts the ops of each name and place so far; updated.
    """
    place, name = seen.place, seen.kind.name
    key = (place.phase, place.module, place.gradient_of, name, seen.output)
    occurrence = before[key]
    before[key] += 1
    finite = largest - largest == 0
    return OpRecord(
        index=index,
        op=name,
        phase=place.phase,
        module=place.module,
        output=seen.output,
        occurrence=occurrence,
        source=line_text(place.line),
        gradient_of=place.gradient_of,
        inputs=_dtype_names(seen.inputs),
        dtype=dtype_name(seen.dtype),
        shape=tuple(seen.shape),
        largest=largest,
        finite_fraction=1.0 if finite else float("nan"),
        largest_finite=largest if finite else float("nan"),
        range=range_,
    )


@functools.cache
def _dtype_names(dtypes: tuple[torch.dtype, ...]) -> tuple[str, ...]:
    return tuple(dtype_name(dtype) for dtype in dtypes)


@functools.cache
def dtype_name(dtype: torch.dtype) -> str:
    """``float16``."""
    return str(dtype).removeprefix("torch.")


def range_record(counts: ExponentCounts, format: Format | None) -> RangeRecord:
    """The shares of one tensor's values in a format."""
    assert format is not None
    found = counts.read()
    num = max(1, found.num_values)
    return RangeRecord(
        format=format.name,
        zero_fraction=found.num_zero / num,
        subnormal_fraction=found.subnormal(format) / num,
        underflow_fraction=found.underflowing(format) / num,
        overflow_fraction=found.overflowing(format) / num,
        histogram=found.histogram,
    )
