"""Axes: the right place, few ticks, labels that differ."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfstep.report.axes import Axis, linear_axis, log2_axis, log10_axis, step_axis

FINITE = st.floats(allow_nan=False, allow_infinity=False)
POSITIVE = st.floats(min_value=0, exclude_min=True, allow_infinity=False)


def labels(axis: Axis) -> list[str]:
    return [tick.label for tick in axis.ticks]


def check(axis: Axis, values: list[float]) -> None:
    """What every axis owes its reader."""
    assert all(0.0 <= axis.at(value) <= 1.0 for value in values)
    places = [tick.at for tick in axis.ticks]
    assert 1 <= len(places) <= 7
    assert places == sorted(places)
    assert places[0] >= 0.0
    assert places[-1] <= 1.0
    assert len({*labels(axis)}) == len(places)


@given(st.lists(FINITE, min_size=1, max_size=5))
def test_linear_axis_of_any_values_holds_them_with_few_distinct_ticks(values: list[float]) -> None:
    check(linear_axis(values), values)


@given(st.lists(POSITIVE, min_size=1, max_size=5))
def test_logarithmic_axes_of_any_positive_values_hold_them(values: list[float]) -> None:
    check(log10_axis(values), values)
    check(log2_axis(values), values)


@given(st.integers(1, 10**6), st.integers(0, 10**6))
def test_step_axis_has_ticks_at_whole_steps_only(first: int, more: int) -> None:
    axis = step_axis(first, first + more)
    numbers = [int(label.replace(",", "")) for label in labels(axis)]
    assert len(numbers) <= 5
    for number, tick in zip(numbers, axis.ticks, strict=True):
        assert first <= number <= first + more
        assert tick.at == pytest.approx((number - first + 0.5) / (more + 1))


def test_linear_axis_of_a_loss_ticks_at_round_numbers() -> None:
    axis = linear_axis([1.0, 4.0, math.nan, math.inf])
    assert labels(axis) == ["1", "2", "3", "4"]
    assert axis.at(2.5) == pytest.approx(0.5)


def test_linear_axis_of_shares_begins_at_0_in_percent() -> None:
    axis = linear_axis([0.1, 0.2], from_zero=True, percent=True)
    assert labels(axis)[:2] == ["0 %", "5 %"]
    assert axis.at(0.0) == 0.0


def test_linear_axis_of_shares_that_are_all_0_is_an_axis() -> None:
    assert linear_axis([0.0], from_zero=True, percent=True).at(0.0) == 0.0


def test_log10_axis_halves_a_hundredfold_at_ten() -> None:
    axis = log10_axis([1.0, 100.0])
    assert axis.at(10.0) == pytest.approx(0.5)
    assert labels(axis) == ["1", "10", "100"]
    assert axis.at(0.0) == axis.at(-1.0) == 0.0  # there is no place for them


def test_log2_axis_of_loss_scales_ticks_at_powers_of_two() -> None:
    axis = log2_axis([2.0**13, 2.0**16])
    assert labels(axis) == ["2¹³", "2¹⁴", "2¹⁵", "2¹⁶"]
    assert axis.at(2.0**14) - axis.at(2.0**13) == pytest.approx(axis.at(2.0**16) - axis.at(2.0**15))


def test_axis_of_nothing_is_an_axis() -> None:
    for axis in (linear_axis([]), log10_axis([]), log2_axis([math.nan])):
        assert 0 < axis.at(1.0) <= 1
