"""Axes of a chart: where a value lies between 0 and 1, and which ticks to write."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from halfstep.records.step import format_number

_MAX_TICKS = 5
_MAX_STEP_TICKS = 4  # their labels are long
_NARROWEST = 0.02  # of the value: three digits then still tell neighbouring ticks apart
_FARTHEST = 1e300  # beyond it margins and ticks would overflow
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, slots=True)
class Tick:
    """One tick.

    Attributes:
        at: Place on the axis, from 0 (low end) to 1.
        label: What is written there.
    """

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Axis:
    """A range of values.

    Attributes:
        low: Transformed value at 0.
        high: Transformed value at 1.
        ticks: Inside the range, in rising order.
        transform: From a value to the straight line; the logarithm on a logarithmic axis.
    """

    low: float
    high: float
    ticks: tuple[Tick, ...]
    transform: Callable[[float], float] = float

    def at(self, value: float) -> float:
        """Place of a value, from 0 to 1 inside the range; values beyond it lie on its edge."""
        share = (self.transform(value) - self.low) / (self.high - self.low)
        return min(max(share, 0.0), 1.0)


def linear_axis(values: Iterable[float], *, from_zero: bool = False, percent: bool = False) -> Axis:
    """An axis in which equal differences are equally long.

    Args:
        values: What must be inside; those that are not finite are left out.
        from_zero: Begin at 0, for shares and counts.
        percent: Write 0.25 as 25 %.
    """
    low, high = _extent(values, around=0.0)
    if from_zero:
        low = min(low, 0.0)
        high = high if high > low else low + 0.01
    low, high = _widened(low, high, smallest=max(abs(low), abs(high), 1e-30) * _NARROWEST)
    margin = (high - low) * 0.04
    bottom = low if from_zero and low == 0 else low - margin
    return _straight(bottom, high + margin, percent)


def step_axis(first: int, last: int) -> Axis:
    """The axis of steps, with half a step to spare at both ends."""
    low, high = first - 0.5, last + 0.5
    step = max(1, round(_nice_step(high - low, _MAX_STEP_TICKS)))
    marks = [float(mark) for mark in range(-(-first // step) * step, last + 1, step)]
    return Axis(low, high, _ticks(marks, low, high, "{:,.0f}".format))


def exponent_axis(first: int, last: int) -> Axis:
    """The axis of exponents of two, from edge to edge."""
    low, high = float(first), float(max(last, first + 1))
    every = max(1, math.ceil((high - low) / _MAX_STEP_TICKS))
    marks = [float(e) for e in range(first, last + 1) if e % every == 0]
    return Axis(low, high, _ticks(marks, low, high, lambda mark: power_of_two(round(mark))))


def log10_axis(values: Iterable[float]) -> Axis:
    """An axis in which equal ratios are equally long; values of 0 and below lie at its low end."""
    low, high = _extent((value for value in values if value > 0), around=1.0)
    low, high = _widened(math.log10(low), math.log10(high), smallest=0.4)  # 2 to 5 are 0.4 apart
    margin = (high - low) * 0.04
    low, high = low - margin, high + margin
    factors = (1, 2, 5) if high - low < 1.5 else (1,)
    decades = range(math.floor(low), math.ceil(high) + 1)
    every = math.ceil(len(decades) / (_MAX_TICKS + 1))
    marks = [d + math.log10(f) for d in decades if d % every == 0 for f in factors]
    ticks = _ticks(marks, low, high, _power_of_ten)
    return Axis(low, high, ticks, _logarithm(math.log10, low))


def log2_axis(values: Iterable[float]) -> Axis:
    """The same for powers of two, such as loss scales: 65536 is written as 2 with exponent 16."""
    low, high = _extent((value for value in values if value > 0), around=1.0)
    low, high = _widened(math.log2(low), math.log2(high), smallest=2.0)
    low, high = low - (high - low) * 0.06, high + (high - low) * 0.06
    every = max(1, math.ceil((high - low) / _MAX_TICKS))
    marks = [e for e in range(math.ceil(low), math.floor(high) + 1) if e % every == 0]
    ticks = _ticks(marks, low, high, lambda mark: power_of_two(round(mark)))
    return Axis(low, high, ticks, _logarithm(math.log2, low))


def _power_of_ten(mark: float) -> str:
    is_decade = mark == round(mark) and abs(mark) >= 5
    # beyond 1e308 there are marks but no floats
    return f"1e{round(mark)}" if is_decade else format_number(10.0**mark)


def power_of_two(exponent: int) -> str:
    """2 with a raised exponent.

    Example:
        >>> power_of_two(-24)
        '2⁻²⁴'
    """
    return f"2{str(exponent).translate(_SUPERSCRIPTS)}"


def _straight(low: float, high: float, percent: bool) -> Axis:
    factor = 100.0 if percent else 1.0
    step = _nice_step((high - low) * factor, _MAX_TICKS)
    first, last = math.ceil(low * factor / step), math.floor(high * factor / step)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))

    def label(mark: float) -> str:
        value = round(mark * factor / step) * step
        is_plain = decimals <= 4 and abs(value) < 1e7
        text = f"{value:,.{decimals}f}" if is_plain else _scientific(value, step)
        return f"{text} %" if percent else text

    marks = [number * step / factor for number in range(first, last + 1)]
    return Axis(low, high, _ticks(marks, low, high, label))


def _scientific(value: float, step: float) -> str:
    """With as many digits as neighbours that lie `step` apart need."""
    if value == 0:
        return "0"
    digits = max(0, math.floor(math.log10(abs(value))) - math.floor(math.log10(step) + 1e-9))
    mantissa, exponent = f"{value:.{digits}e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return f"{mantissa}e{int(exponent)}"


def _nice_step(width: float, max_ticks: int) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that gives few enough ticks."""
    power: float = 10.0 ** math.floor(math.log10(width / max_ticks))
    return next(power * f for f in (1, 2, 5, 10) if width / (power * f) <= max_ticks)


def _ticks(
    marks: Sequence[float], low: float, high: float, label: Callable[[float], str]
) -> tuple[Tick, ...]:
    inside = [mark for mark in marks if low <= mark <= high]
    return tuple(Tick((mark - low) / (high - low), label(mark)) for mark in inside)


def _extent(values: Iterable[float], around: float) -> tuple[float, float]:
    finite = [min(max(v, -_FARTHEST), _FARTHEST) for v in values if math.isfinite(v)]
    return (min(finite), max(finite)) if finite else (around, around)


def _widened(low: float, high: float, smallest: float) -> tuple[float, float]:
    if high - low >= smallest:
        return low, high
    middle = (low + high) / 2
    return middle - smallest / 2, middle + smallest / 2


def _logarithm(function: Callable[[float], float], lowest: float) -> Callable[[float], float]:
    return lambda value: function(value) if value > 0 else lowest
