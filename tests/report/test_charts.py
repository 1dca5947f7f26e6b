"""Geometry of a chart, against numbers worked out by hand."""

from __future__ import annotations

import math

from halfstep.report.axes import Axis
from halfstep.report.charts import HEIGHT, Series, chart

X = Axis(0.5, 4.5, ())  # four steps, 250 units each
Y = Axis(0.0, 10.0, ())  # 15 pixels per unit
assert HEIGHT == 150


def drawn(points: list[tuple[int, float]], **options: object) -> object:
    return chart("t", "s", [Series("run", 1, points)], X, Y, **options)  # type: ignore[arg-type]


def test_curve_goes_through_the_middle_of_each_step() -> None:
    found = drawn([(1, 10.0), (2, 5.0), (3, 0.0), (4, 2.5)])
    (line,) = found.lines
    assert line.line == "M125,0L375,75L625,150L875,112.5"
    assert (line.dots, line.band) == ("", "")


def test_point_between_two_gaps_is_a_dot() -> None:
    (line,) = drawn([(1, 1.0), (2, math.nan), (3, 5.0), (4, math.inf)]).lines
    assert (line.line, line.dots) == ("", "M125,135h0M625,75h0")


def test_stairs_change_between_two_steps() -> None:
    (line,) = drawn([(1, 8.0), (2, 8.0), (3, 4.0), (4, 4.0)], stepped=True).lines
    assert line.line == "M0,30H500V90H1000"


def test_stairs_of_many_steps_keep_a_dip_between_two_equal_ends() -> None:
    x = Axis(0.5, 1000.5, ())
    points = [(n, 0.0 if n == 501 else 8.0) for n in range(1, 1001)]
    found = chart("t", "s", [Series("run", 1, points)], x, Y, stepped=True)
    assert found.lines[0].line == "M0,30H500V150V30H1000"


def test_band_of_many_steps_goes_along_largest_and_back_along_smallest() -> None:
    x = Axis(0.5, 1000.5, ())
    points = [(n, 10.0 if n % 2 else 0.0) for n in range(1, 1001)]
    (line,) = chart("t", "s", [Series("run", 1, points)], x, Y).lines
    corners = line.band.removeprefix("M").removesuffix("z").split("L")
    assert len(corners) == 1000
    assert corners[0] == "1,0"
    assert corners[-1] == "1,150"


def test_marks_cover_their_steps_in_percent() -> None:
    found = drawn([(1, 1.0), (2, math.inf), (3, 1.0), (4, math.nan)], skips=[2, 3])
    assert [(mark.left, mark.width) for mark in found.skips] == [(25.0, 50.0)]
    # a skip says by itself that something was not finite
    assert [(mark.left, mark.width) for mark in found.not_finite] == [(75.0, 25.0)]


def test_level_lies_at_its_value() -> None:
    (level,) = drawn([(1, 1.0)], levels=[(4.0, "limit")]).levels
    assert (level.y, level.label) == (90.0, "limit")
