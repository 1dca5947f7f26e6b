"""Long series in few points that keep their extremes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

MAX_BUCKETS = 500

Point = tuple[int, float]  # a step and its value


@dataclass(frozen=True, slots=True)
class Bucket:
    """Neighbouring points of a series.

    Attributes:
        first: Step of the first point.
        last: Step of the last one.
        low: Smallest value.
        middle: Median: it means the same on a linear and on a logarithmic axis.
        high: Largest value.
        final: Value of the last point.
    """

    first: int
    last: int
    low: float
    middle: float
    high: float
    final: float


def pieces(points: Sequence[Point], limit: int = MAX_BUCKETS) -> list[list[Bucket]]:
    """The series in at most about `limit` buckets, cut where a value is not finite.

    A series of up to `limit` points keeps every one. In a longer one each bucket keeps its
    smallest and its largest value, so no spike is lost.

    Args:
        points: In rising order of steps.
        limit: Number of buckets.
    """
    size = max(1, math.ceil(len(points) / limit))
    found: list[list[Bucket]] = [[]]
    for start in range(0, len(points), size):
        chunk = points[start : start + size]
        finite = [(step, value) for step, value in chunk if math.isfinite(value)]
        if finite:
            found[-1].append(_bucket(finite))
        # in a long series a single bad value is a mark, not a gap
        elif found[-1]:
            found.append([])
    return [piece for piece in found if piece]


def spans(steps: Iterable[int], resolution: int) -> Iterator[tuple[int, int]]:
    """Steps as intervals; those closer than `resolution` become one.

    Args:
        steps: In rising order.
        resolution: In steps.
    """
    first = last = None
    for step in steps:
        if last is not None and step - last > resolution:
            assert first is not None
            yield first, last
            first = None
        first = step if first is None else first
        last = step
    if first is not None and last is not None:
        yield first, last


def _bucket(points: Sequence[Point]) -> Bucket:
    values = [value for _, value in points]
    return Bucket(
        first=points[0][0],
        last=points[-1][0],
        low=min(values),
        middle=statistics.median_high(values),
        high=max(values),
        final=values[-1],
    )
