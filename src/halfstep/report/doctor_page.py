"""The page of a diagnosis."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from halfstep.records import Diagnosis, DtypeRow, Equality, GradientError, PathStep
from halfstep.records.step import format_number
from halfstep.report.axes import step_axis
from halfstep.report.charts import MAX_COLOURS, Chart, Series, chart, free_axis
from halfstep.report.gradient_picture import gradient_picture, underflow_chart, window_rows
from halfstep.report.layer_table import LayerRow, headroom_chart, interesting, layer_rows
from halfstep.report.page import render
from halfstep.report.verdict import Level, Verdict

_MAX_ROWS = 24  # of a table that is not folded away
_MAX_FOLDED_ROWS = 48
_MAX_EMBEDDED_BYTES = 32_000
_MAX_DTYPES = 40
_FP8 = ("e4m3", "e5m2")

_LEVELS: dict[str, tuple[Level, str]] = {
    "healthy": ("good", "Healthy"),
    "precision": ("bad", "Breaks in low precision"),
    "not_precision": ("bad", "Broken in FP32 too"),
}


def doctor_page(found: Diagnosis) -> str:
    """HTML of a page about a diagnosis.

    Raises:
        BadValueError: Jinja2 is not installed.
    """
    level, word = _LEVELS[found.health]
    rows = [replace(row, module=_short(row.module)) for row in layer_rows(found.passes)]
    windows = window_rows(found.gradient_range.windows) if found.gradient_range else []
    lost = [one for one in found.lost_updates if one.lost_fraction > 0]
    lost.sort(key=lambda one: (one.is_lost, one.lost_fraction), reverse=True)
    return render(
        "doctor.html",
        data={"halfstep_page": "diagnosis", "diagnosis": _embedded(found)},
        title=found.recipe,
        verdict=Verdict(level, found.headline, (_conditions(found),), word),
        found=found,
        headroom=headroom_chart(found.passes),
        rows=rows if len(rows) <= _MAX_ROWS else interesting(rows)[:_MAX_ROWS],
        all_rows=_folded(rows) if len(rows) > _MAX_ROWS else [],
        num_rows=len(rows),
        picture=gradient_picture(found.gradient_range) if found.gradient_range else None,
        underflow=underflow_chart(found.gradient_range) if found.gradient_range else None,
        windows=[one for one in windows if one.format not in _FP8],
        fp8_windows=[one for one in windows if one.format in _FP8],
        dtypes=_dtypes(found.dtypes),
        ways=[_way(cause.path) for cause in found.causes],
        is_whole=_is_small(found),
        curves=_curves(found.equality) if found.equality else None,
        worst=_worst_gradients(found.equality) if found.equality else [],
        lost=lost[:_MAX_ROWS],
        num_lost=len(lost),
    )


def _conditions(found: Diagnosis) -> str:
    lists = {"cuda": "CUDA's op lists", "device": "the device's own op lists"}
    base, *exceptions = found.policy.split(", ")
    return (
        f"One batch on {found.device} with {', '.join([lists.get(base, base), *exceptions])},"
        f" torch {found.torch}."
    )


def _curves(equality: Equality) -> Chart | None:
    shown = equality.curves[:MAX_COLOURS]
    if not any(curve.losses for curve in shown):
        return None
    series = [
        Series(curve.name, number, list(enumerate(curve.losses, 1)))
        for number, curve in enumerate(shown, 1)
    ]
    summary = "; ".join(
        f"{curve.name}: {format_number(curve.losses[0])} to {format_number(curve.losses[-1])}"
        for curve in shown
        if curve.losses
    )
    x = step_axis(1, max(len(curve.losses) for curve in shown))
    return chart("Loss of a short training run", summary, series, x, free_axis(series))


def _worst_gradients(equality: Equality) -> list[tuple[str, GradientError]]:
    """Per pass the three parameters whose gradient is farthest from FP32, as they count."""
    found = []
    for one in equality.passes:
        weighed = sorted(one.gradients, key=_weight, reverse=True)
        found += [(one.name, error) for error in weighed[:3]]
    return found


def _weight(error: GradientError) -> float:
    known = error.relative_error == error.relative_error
    return error.relative_error * error.share**0.5 if known else float("inf")


def _short(path: str) -> str:
    """A module's path without the class of the model, which all of them begin with."""
    return path.partition(".")[2] or path


def _folded(rows: Sequence[LayerRow]) -> list[LayerRow]:
    """All rows; of many the interesting ones and evenly spaced others."""
    if len(rows) <= _MAX_FOLDED_ROWS:
        return list(rows)
    step = -(-len(rows) // _MAX_FOLDED_ROWS)
    return [row for number, row in enumerate(rows) if number % step == 0 or row.first_in]


@dataclass(frozen=True, slots=True)
class DtypeGroup:
    """Neighbours of one stage with the same dtypes.

    Attributes:
        stage, dtypes: As in `DtypeRow`.
        name: Of the first, and how many more there are.
    """

    stage: str
    dtypes: Mapping[str, str]
    name: str


def _dtypes(rows: Sequence[DtypeRow]) -> list[DtypeGroup]:
    groups = []
    for (stage, dtypes), same in groupby(rows, lambda row: (row.stage, row.dtypes)):
        members = list(same)
        more = f" and {len(members) - 1:,} more" if len(members) > 1 else ""
        groups.append(DtypeGroup(stage, dtypes, f"{_short_layer(members[0])}{more}"))
    return groups[:_MAX_DTYPES]


def _short_layer(row: DtypeRow) -> str:
    return _short(row.name) if row.stage in ("layer", "activation gradient") else row.name


@dataclass(frozen=True, slots=True)
class WayStep:
    """One module on the way of a fault.

    Attributes:
        name: Module and op.
        error: In words.
        width: Of its bar, in percent.
    """

    name: str
    error: str
    width: int


def _way(path: Sequence[PathStep]) -> list[WayStep]:
    """The picture of a fault's way: bars as long as the logarithm of the error."""
    steps = []
    for step in path:
        error = step.relative_error
        if error != error:
            words, width = "no partner in FP32", 1
        elif math.isinf(error):
            words, width = "not finite", 40
        else:
            words = f"error {error:.2g}"
            width = round(40 * (1 + max(-4.0, min(0.0, math.log10(error or 1e-4))) / 4)) or 1
        steps.append(
            WayStep(f"{_short(step.module) or 'the loss function'}: {step.op}", words, width)
        )
    return steps


def _is_small(found: Diagnosis) -> bool:
    return len(json.dumps(found.to_dict())) <= _MAX_EMBEDDED_BYTES


def _embedded(found: Diagnosis) -> dict[str, Any]:
    """The record; of a large network without its tables of layers, gradients and dtypes."""
    if _is_small(found):
        return found.to_dict()
    equality = found.equality
    if equality is not None:
        passes = tuple(
            replace(one, gradients=tuple(sorted(one.gradients, key=_weight, reverse=True)[:3]))
            for one in equality.passes
        )
        equality = replace(equality, passes=passes)
    bare = replace(
        found,
        passes=tuple(replace(one, layers=()) for one in found.passes),
        gradient_range=found.gradient_range and replace(found.gradient_range, rows=()),
        lost_updates=(),
        dtypes=(),
        equality=equality,
    )
    return bare.to_dict()
