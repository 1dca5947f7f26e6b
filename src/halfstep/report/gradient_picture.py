"""Where the gradients of each layer lie among the powers of two, and what FP16 can reach."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from halfstep.numerics import format_named
from halfstep.records import GradientRange, GradientRow, ScaleWindow
from halfstep.records.step import format_number
from halfstep.report.axes import Axis, Tick, exponent_axis, linear_axis
from halfstep.report.charts import Chart, Series, chart
from halfstep.report.run_facts import write_percent, write_scale

_MAX_ROWS = 24
_FAINTEST = 0.1  # opacity of a power of two that holds any value at all


@dataclass(frozen=True, slots=True)
class Cell:
    """One power of two: `left` and `width` in percent, `opacity` by its number of values."""

    left: float
    width: float
    opacity: float


@dataclass(frozen=True, slots=True)
class PictureRow:
    """One gradient, or all of a kind.

    Attributes:
        name: Parameter, module, or "all parameters".
        kind: ``"parameter"`` or ``"activation"``.
        cells: Its exponents.
        extent: Smallest and largest magnitude in words, or why there is none.
        zeros: Share of true zeros in words.
    """

    name: str
    kind: str
    cells: list[Cell]
    extent: str
    zeros: str


@dataclass(frozen=True, slots=True)
class Picture:
    """All rows over one axis.

    Attributes:
        rows: All, or those that reach lowest.
        num_rows: How many there are.
        ticks: Along the top, in percent.
        reach: What FP16 holds at `scale`, without losing bits.
        scale: In words.
    """

    rows: list[PictureRow]
    num_rows: int
    ticks: list[Tick]
    reach: Cell
    scale: str


@dataclass(frozen=True, slots=True)
class WindowRow:
    """The safe loss scales of one format, in words."""

    format: str
    safe: str
    suggested: str
    worst: str


def gradient_picture(found: GradientRange) -> Picture:
    """Lay out the exponents of every gradient."""
    fp16 = format_named("fp16")
    windows = [one for one in found.windows if one.format == "fp16"]
    scale = (windows[0].suggested if windows else None) or 1.0
    low = fp16.min_exponent - math.log2(scale)
    high = fp16.max_exponent + 1 - math.log2(scale)
    exponents = [e for row in found.rows for e in row.histogram]
    axis = exponent_axis(
        math.floor(min([low, *exponents])), math.ceil(max([high, *(e + 1 for e in exponents)]))
    )
    order = sorted(range(len(found.rows)), key=lambda n: _bottom(found.rows[n]))
    shown = [found.rows[n] for n in sorted(order[:_MAX_ROWS])]
    return Picture(
        rows=[_picture_row(row, axis) for row in [*_totals(found.rows), *shown]],
        num_rows=len(found.rows),
        ticks=[Tick(round(100 * tick.at, 2), tick.label) for tick in axis.ticks],
        reach=_cell(axis, low, high, 1.0),
        scale=write_scale(scale),
    )


def underflow_chart(found: GradientRange) -> Chart | None:
    """Share of the non-zero gradients that each format turns into 0, over loss scales."""
    windows = [one for one in found.windows if one.underflow]
    exponents = [exponent for one in windows for exponent in one.underflow]
    if not exponents:
        return None
    series = [
        Series(one.format, number, sorted(one.underflow.items()))
        for number, one in enumerate(windows, 1)
    ]
    y = linear_axis(
        (share for one in series for _, share in one.points), from_zero=True, percent=True
    )
    return chart(
        "Gradients that become 0, by loss scale",
        "of those that are not 0 in FP32",
        series,
        exponent_axis(min(exponents), max(exponents)),
        y,
        x_name="scale",
    )


def window_rows(windows: Sequence[ScaleWindow]) -> list[WindowRow]:
    """The table of safe loss scales."""
    return [_window_row(one) for one in windows]


def _window_row(one: ScaleWindow) -> WindowRow:
    if one.lowest is None or one.highest is None:
        safe = "none"
    elif one.is_empty:
        safe = f"none: at least {write_scale(one.lowest)}, at most {write_scale(one.highest)}"
    else:
        safe = f"{write_scale(one.lowest)} to {write_scale(one.highest)}"
    return WindowRow(
        format=one.format,
        safe=safe,
        suggested="-" if one.suggested is None else write_scale(one.suggested),
        worst=_worst(one),
    )


def _worst(one: ScaleWindow) -> str:
    if not one.worst_fraction > 0:
        return "nothing"
    place = one.worst or "the loss function"
    return f"at most {write_percent(one.worst_fraction)} of a gradient ({place})"


def _totals(rows: Sequence[GradientRow]) -> list[GradientRow]:
    """One row for all parameters and one for all activations."""
    found = []
    for kind, name in (("parameter", "all parameters"), ("activation", "all activations")):
        chosen = [row for row in rows if row.kind == kind and row.histogram]
        counts = Counter[int]()
        for row in chosen:
            counts.update(row.histogram)
        if len(chosen) > 1:
            smallest = min(row.smallest for row in chosen)
            largest = max(row.largest for row in chosen)
            found.append(
                GradientRow(
                    name=name,
                    kind=kind,
                    is_none=False,
                    owner="",
                    zero_fraction=math.nan,
                    smallest=smallest,
                    largest=largest,
                    histogram=dict(counts),
                )
            )
    return found


def _picture_row(row: GradientRow, axis: Axis) -> PictureRow:
    if row.is_none:
        extent = "no gradient (.grad is None)"
    elif not row.histogram:
        extent = "zeros only"
    else:
        extent = f"{format_number(row.smallest)} to {format_number(row.largest)}"
    return PictureRow(
        name=(row.name if row.kind == "parameter" else row.name.partition(".")[2] or row.name)
        or "the loss function",
        kind=row.kind,
        cells=_cells(row.histogram, axis),
        extent=extent,
        zeros="" if math.isnan(row.zero_fraction) else write_percent(row.zero_fraction),
    )


def _cells(histogram: Mapping[int, int], axis: Axis) -> list[Cell]:
    most = max(histogram.values(), default=1)
    return [
        _cell(axis, e, e + 1, max(_FAINTEST, round(math.sqrt(count / most), 2)))
        for e, count in sorted(histogram.items())
        if count
    ]


def _cell(axis: Axis, low: float, high: float, opacity: float) -> Cell:
    left, right = 100 * axis.at(low), 100 * axis.at(high)
    return Cell(round(left, 2), round(right - left, 2), opacity)


def _bottom(row: GradientRow) -> float:
    """Exponent that a hundredth of the values lie below."""
    wanted = sum(row.histogram.values()) / 100
    for exponent, count in sorted(row.histogram.items()):
        wanted -= count
        if wanted <= 0:
            return exponent
    return math.inf
