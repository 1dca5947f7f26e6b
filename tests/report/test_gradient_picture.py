"""Exponents of gradients as places on a line."""

from __future__ import annotations

import math

import pytest
from made_diagnoses import made_range, modules

from halfstep.records import GradientRange, GradientRow, ScaleWindow
from halfstep.report.gradient_picture import gradient_picture, underflow_chart, window_rows


def row(name: str, histogram: dict[int, int], kind: str = "parameter") -> GradientRow:
    exponents = [*histogram] or [0]
    return GradientRow(
        name, kind, False, "", 0.25, 2.0 ** min(exponents), 2.0 ** max(exponents), histogram
    )


def window(name: str = "fp16", **changes: object) -> ScaleWindow:
    fields: dict[str, object] = {
        "format": name,
        "lowest": 2.0**4,
        "highest": 2.0**20,
        "suggested": 2.0**16,
        "tolerance": 0.01,
        "underflow": {0: 0.5, 16: 0.0},
        "worst": "head",
        "worst_fraction": 0.002,
    }
    return ScaleWindow(**{**fields, **changes})  # type: ignore[arg-type]


def test_cells_and_reach_lie_at_their_powers_of_two() -> None:
    picture = gradient_picture(GradientRange((row("w", {-40: 1, -20: 4}),), (window(),)))
    # from 2^-40, the smallest value, to 2^0, where FP16 ends at scale 2^16
    assert [(cell.left, cell.width) for cell in picture.rows[0].cells] == [(0, 2.5), (50, 2.5)]
    assert [cell.opacity for cell in picture.rows[0].cells] == [0.5, 1.0]  # by the root
    assert (picture.reach.left, picture.reach.width) == (25.0, 75.0)  # 2^-14 at 2^16 is 2^-30
    assert picture.scale == "65,536"


def test_several_gradients_of_a_kind_have_a_row_of_all() -> None:
    rows = (row("a", {-3: 1}), row("b", {-5: 3}), row("c", {-4: 1}, "activation"))
    picture = gradient_picture(GradientRange(rows, ()))
    assert [one.name for one in picture.rows] == ["all parameters", "a", "b", "c"]
    assert picture.rows[0].extent == "0.0312 to 0.125"
    assert len(picture.rows[0].cells) == 2


def test_missing_gradient_is_told_from_zeros() -> None:
    rows = (
        GradientRow("unused", "parameter", True, "", math.nan, math.nan, math.nan, {}),
        GradientRow("dead", "parameter", False, "", 1.0, math.nan, 0.0, {}),
    )
    unused, dead = gradient_picture(GradientRange(rows, ())).rows
    assert (unused.extent, unused.zeros) == ("no gradient (.grad is None)", "")
    assert (dead.extent, dead.zeros) == ("zeros only", "100 %")


def test_many_gradients_keep_those_that_reach_lowest_in_the_models_order() -> None:
    rows = tuple(row(str(n), {-n: 10}) for n in range(60))
    picture = gradient_picture(GradientRange(rows, ()))
    assert picture.num_rows == 60
    assert [one.name for one in picture.rows[1:]] == [str(n) for n in range(36, 60)]


def test_underflow_chart_has_a_line_per_format() -> None:
    found = underflow_chart(made_range(modules()))
    assert found is not None
    assert [line.name for line in found.lines] == ["fp16", "bf16", "e4m3", "e5m2"]
    assert underflow_chart(GradientRange((), ())) is None


@pytest.mark.parametrize(
    ("changes", "safe"),
    [
        ({}, "16 to 1,048,576"),
        ({"lowest": None}, "none"),
        ({"highest": None}, "none"),
        ({"lowest": 2.0**10, "highest": 2.0**8}, "none: at least 1,024, at most 256"),
    ],
)
def test_window_says_which_scales_are_safe(changes: dict[str, object], safe: str) -> None:
    (found,) = window_rows([window(**changes)])
    assert found.safe == safe
    assert (found.suggested, found.worst) == ("65,536", "at most 0.2 % of a gradient (head)")
