"""Long series: nothing that stands out may be lost."""

from __future__ import annotations

import itertools
import math
import statistics

from hypothesis import given
from hypothesis import strategies as st

from halfstep.report.buckets import pieces, spans

VALUES = st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=200)


@given(VALUES)
def test_pieces_keep_extremes_and_number_of_buckets(values: list[float]) -> None:
    points = list(enumerate(values, 1))
    buckets = [bucket for piece in pieces(points, limit=20) for bucket in piece]
    finite = [value for value in values if math.isfinite(value)]
    assert len(buckets) <= 20
    assert bool(buckets) == bool(finite)
    if finite:
        assert min(bucket.low for bucket in buckets) == min(finite)
        assert max(bucket.high for bucket in buckets) == max(finite)
        assert buckets[-1].final == finite[-1]
    assert all(bucket.low <= bucket.middle <= bucket.high for bucket in buckets)


@given(VALUES)
def test_short_series_keeps_every_finite_point(values: list[float]) -> None:
    buckets = [bucket for piece in pieces(list(enumerate(values))) for bucket in piece]
    kept = [(bucket.first, bucket.middle) for bucket in buckets]
    assert kept == [point for point in enumerate(values) if math.isfinite(point[1])]


def test_value_that_is_not_finite_cuts_a_short_series() -> None:
    found = pieces([(1, 1.0), (2, math.nan), (3, 3.0), (4, 4.0)])
    assert [[bucket.first for bucket in piece] for piece in found] == [[1], [3, 4]]


def test_bucket_is_the_median_of_its_points() -> None:
    values = [5.0, 1.0, 9.0, 2.0, 7.0]
    ((bucket,),) = pieces(list(enumerate(values)), limit=1)
    assert bucket.middle == statistics.median(values)
    assert (bucket.first, bucket.last, bucket.final) == (0, 4, 7.0)


def test_spans_join_what_is_closer_than_the_resolution() -> None:
    assert list(spans([1, 2, 5, 9], resolution=1)) == [(1, 2), (5, 5), (9, 9)]
    assert list(spans([1, 2, 5, 9], resolution=3)) == [(1, 5), (9, 9)]
    assert list(spans([], resolution=3)) == []


@given(st.sets(st.integers(1, 1000)), st.integers(1, 50))
def test_spans_cover_every_step_and_overlap_nowhere(steps: set[int], resolution: int) -> None:
    found = list(spans(sorted(steps), resolution))
    assert all(any(first <= step <= last for first, last in found) for step in steps)
    gaps = [b[0] - a[1] for a, b in itertools.pairwise(found)]
    assert all(gap > resolution for gap in gaps)
