"""Curves as geometry: what the chart template draws.

Widths are shares of the chart, heights are pixels. So a chart is as wide as its page while text and
line widths keep their size, and the colours belong to the page's style sheet, light or dark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from halfstep.report.axes import Axis, Tick, linear_axis, log10_axis
from halfstep.report.buckets import Bucket, Point, pieces, spans

HEIGHT = 150  # pixels of the plot itself
SPAN = 1000  # units across it
MAX_COLOURS = 6
_LOG_FROM = 20.0  # a series that spans more than this ratio is drawn on a logarithmic axis
_MARK_RESOLUTION = 400  # marks closer than this part of the width become one


@dataclass(frozen=True, slots=True)
class Series:
    """One run's values.

    Attributes:
        name: For the legend.
        colour: Number of its colour in the style sheet, from 1 to `MAX_COLOURS`.
        points: Steps and values, in rising order of steps.
    """

    name: str
    colour: int
    points: Sequence[Point]


@dataclass(frozen=True, slots=True)
class Line:
    """A series as drawn.

    Attributes:
        name: For the legend.
        colour: As in `Series`.
        line: SVG path through the medians (through every value of a short series).
        dots: SVG path of points that stand alone.
        band: SVG path around smallest and largest values; empty for a short series.
    """

    name: str
    colour: int
    line: str
    dots: str
    band: str


@dataclass(frozen=True, slots=True)
class Mark:
    """Steps that something happened at, from `left` over `width`, both in percent."""

    left: float
    width: float


@dataclass(frozen=True, slots=True)
class Level:
    """A horizontal line with a meaning, such as the clipping limit, `y` pixels from the top."""

    y: float
    label: str


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart.

    Attributes:
        title: What is drawn.
        summary: The same in a sentence, which is also read to those who do not see the chart.
        lines: Curves.
        x_ticks: Along the bottom, in percent.
        y_ticks: Along the left side, in pixels from the top.
        skips: Skipped steps.
        not_finite: Other steps whose value is inf or NaN.
        levels: Horizontal lines.
        x_name: What the numbers along the bottom count.
        height: Of the plot itself, in pixels.
    """

    title: str
    summary: str
    lines: list[Line]
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    skips: list[Mark] = field(default_factory=list)
    not_finite: list[Mark] = field(default_factory=list)
    levels: list[Level] = field(default_factory=list)
    x_name: str = "step"
    height: int = HEIGHT


def chart(
    title: str,
    summary: str,
    series: Sequence[Series],
    x: Axis,
    y: Axis,
    *,
    skips: Iterable[int] = (),
    levels: Iterable[tuple[float, str]] = (),
    stepped: bool = False,
    x_name: str = "step",
) -> Chart:
    """Lay out one chart.

    Args:
        title, summary: See `Chart`.
        series: What to draw.
        x: From `step_axis`.
        y: Of the values.
        skips: Steps to mark over the whole height.
        levels: Values with a label for horizontal lines.
        stepped: The value stays what it was until it changes, as a loss scale does.
        x_name: What the numbers along the bottom count.
    """
    skipped = set(skips)
    bad = {n for one in series for n, value in one.points if not math.isfinite(value)} - skipped
    return Chart(
        title=title,
        summary=summary,
        lines=[_line(one, x, y, stepped) for one in series],
        x_ticks=[Tick(round(tick.at * 100, 2), tick.label) for tick in x.ticks],
        y_ticks=[Tick(round(HEIGHT * (1 - tick.at), 1), tick.label) for tick in y.ticks],
        skips=_marks(sorted(skipped), x),
        not_finite=_marks(sorted(bad), x),
        levels=[Level(round(HEIGHT * (1 - y.at(value)), 1), label) for value, label in levels],
        x_name=x_name,
    )


def free_axis(series: Sequence[Series], more: Sequence[float] = ()) -> Axis:
    """A linear axis, or a logarithmic one for what spans more than a few times itself.

    Args:
        series: What to draw.
        more: Values that must be inside too.
    """
    values = [*(value for value in values_of(series) if math.isfinite(value)), *more]
    is_wide = bool(values) and min(values) > 0 and max(values) > _LOG_FROM * min(values)
    return log10_axis(values) if is_wide else linear_axis(values)


def values_of(series: Sequence[Series]) -> list[float]:
    """All values, in no order."""
    return [value for one in series for _, value in one.points]


def _line(series: Series, x: Axis, y: Axis, stepped: bool) -> Line:
    draw = _Pen(x, y)
    drawn = pieces(series.points)
    line = "".join(
        draw.stairs(piece) if stepped else draw.curve(piece)
        for piece in drawn
        if stepped or len(piece) > 1
    )
    dots = "" if stepped else "".join(draw.dot(piece[0]) for piece in drawn if len(piece) == 1)
    is_long = any(bucket.first != bucket.last for piece in drawn for bucket in piece)
    band = "".join(map(draw.band, drawn)) if is_long and not stepped else ""
    return Line(series.name, series.colour, line, dots, band)


def _marks(steps: Iterable[int], x: Axis) -> list[Mark]:
    width = x.high - x.low
    found = spans(steps, resolution=max(1, round(width / _MARK_RESOLUTION)))
    return [
        Mark(
            left=round(100 * x.at(first - 0.5), 3),
            width=round(100 * (x.at(last + 0.5) - x.at(first - 0.5)), 3),
        )
        for first, last in found
    ]


class _Pen:
    """Paths in the units of the plot, with one decimal: a tenth of a pixel."""

    def __init__(self, x: Axis, y: Axis) -> None:
        self._x, self._y = x, y

    def curve(self, piece: list[Bucket]) -> str:
        return "M" + "L".join(self._at(self._centre(one), one.middle) for one in piece)

    def dot(self, bucket: Bucket) -> str:
        # a line of no length with round ends
        return f"M{self._at(self._centre(bucket), bucket.middle)}h0"

    def band(self, piece: list[Bucket]) -> str:
        above = [self._at(self._centre(bucket), bucket.high) for bucket in piece]
        below = [self._at(self._centre(bucket), bucket.low) for bucket in reversed(piece)]
        return "M" + "L".join(above + below) + "z"

    def stairs(self, piece: list[Bucket]) -> str:
        path, level = "", ""
        for bucket in piece:
            left, right = self._across(bucket.first - 0.5), self._across(bucket.last + 0.5)
            heights = [self._up(value) for value in (bucket.low, bucket.high, bucket.final)]
            if not path:
                path, level = f"M{left},{heights[0]}", heights[0]
            elif heights != [level] * 3:
                path += f"H{left}"
            for height in heights:
                path += f"V{height}" if height != level else ""
                level = height
        return f"{path}H{right}"

    def _centre(self, bucket: Bucket) -> float:
        return (bucket.first + bucket.last) / 2

    def _at(self, step: float, value: float) -> str:
        return f"{self._across(step)},{self._up(value)}"

    def _across(self, step: float) -> str:
        return f"{SPAN * self._x.at(step):.1f}".removesuffix(".0")

    def _up(self, value: float) -> str:
        return f"{HEIGHT * (1 - self._y.at(value)):.1f}".removesuffix(".0")
