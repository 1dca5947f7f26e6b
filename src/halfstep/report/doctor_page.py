"""The page of a diagnosis."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from halfstep.records import Diagnosis, Equality, GradientError
from halfstep.records.step import format_number
from halfstep.report.axes import step_axis
from halfstep.report.charts import MAX_COLOURS, Chart, Series, chart, free_axis
from halfstep.report.gradient_picture import gradient_picture, underflow_chart, window_rows
from halfstep.report.layer_table import headroom_chart, interesting, layer_rows
from halfstep.report.page import render
from halfstep.report.verdict import Level, Verdict

_MAX_ROWS = 24  # of a table that is not folded away
_MAX_FOLDED_ROWS = 1000
_MAX_EMBEDDED_LAYERS = 4000

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
    rows = layer_rows(found.passes)
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
        all_rows=rows[:_MAX_FOLDED_ROWS] if len(rows) > _MAX_ROWS else [],
        num_rows=len(rows),
        picture=gradient_picture(found.gradient_range) if found.gradient_range else None,
        underflow=underflow_chart(found.gradient_range) if found.gradient_range else None,
        windows=window_rows(found.gradient_range.windows) if found.gradient_range else [],
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


def _embedded(found: Diagnosis) -> dict[str, Any]:
    """The record; of a very large network without its tables of layers and gradients."""
    if sum(len(one.layers) for one in found.passes) <= _MAX_EMBEDDED_LAYERS:
        return found.to_dict()
    bare = replace(
        found,
        passes=tuple(replace(one, layers=()) for one in found.passes),
        gradient_range=found.gradient_range and replace(found.gradient_range, rows=()),
        lost_updates=(),
        dtypes=(),
    )
    return bare.to_dict()
