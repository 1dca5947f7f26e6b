"""The curves of one run, or of several side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from halfstep.records import RunRecord, StepRecord
from halfstep.records.step import format_number
from halfstep.report.axes import Axis, linear_axis, log2_axis, power_of_two, step_axis
from halfstep.report.buckets import Point
from halfstep.report.charts import MAX_COLOURS, Chart, Series, chart, free_axis, values_of
from halfstep.report.run_facts import uses_scale, write_percent, write_scale

_MAX_METRICS = 4

Value = Callable[[StepRecord], float | None]
Write = Callable[[float], str]
NamedRuns = Sequence[tuple[str, RunRecord]]


def run_charts(runs: NamedRuns) -> list[Chart]:
    """Every curve that the records hold, over one common axis of steps."""
    steps = [step.step for _, run in runs for step in run.steps]
    if not steps:
        return []
    return list(_Curves(runs, step_axis(min(steps), max(steps))).all())


class _Curves:
    def __init__(self, runs: NamedRuns, x: Axis) -> None:
        self._runs = runs
        self._x = x
        self._skips = sorted({step.step for _, run in runs for step in run.steps if step.skipped})

    def all(self) -> Iterator[Chart]:
        yield self._free("Loss", lambda step: step.loss)
        yield from self._scale()
        yield self._gradient_norm()
        yield from self._zero_gradients()
        yield from self._learning_rate()
        names = {name for _, run in self._runs for step in run.steps for name in step.metrics}
        for name in sorted(names)[:_MAX_METRICS]:
            yield self._free(name, _metric(name))
        yield from self._validations()

    def _free(self, title: str, value: Value) -> Chart:
        series = self._series(value)
        return self._chart(title, series, free_axis(series))

    def _scale(self) -> Iterator[Chart]:
        series = self._series(lambda step: step.loss_scale)
        scaled = [one for one, (_, run) in zip(series, self._runs, strict=True) if uses_scale(run)]
        if scaled:
            y = log2_axis(values_of(scaled))
            yield self._chart("Loss scale", scaled, y, write=_write_scale, stepped=True)

    def _gradient_norm(self) -> Chart:
        series = self._series(lambda step: step.grad_norm)
        asked = {run.settings.get("max_norm") for _, run in self._runs}
        limits = sorted(float(limit) for limit in asked if limit is not None)
        levels = [(limit, f"clipped above {format_number(limit)}") for limit in limits]
        y = free_axis(series, limits)
        return self._chart("Gradient norm before clipping", series, y, levels=levels)

    def _zero_gradients(self) -> Iterator[Chart]:
        series = self._series(lambda step: step.zero_gradient_fraction)
        if values := values_of(series):
            y = linear_axis(values, from_zero=True, percent=True)
            yield self._chart("Gradients that are exactly 0", series, y, write=write_percent)

    def _learning_rate(self) -> Iterator[Chart]:
        series = self._series(_rate(0))
        groups = max(len(step.lr) for _, run in self._runs for step in run.steps)
        if len(self._runs) == 1 and groups > 1:
            (_, run), shown = self._runs[0], min(groups, MAX_COLOURS)
            series = [Series(f"group {n + 1}", n + 1, _points(run, _rate(n))) for n in range(shown)]
        if any(len({value for _, value in one.points}) > 1 for one in series):
            yield self._chart("Learning rate", series, free_axis(series))

    def _validations(self) -> Iterator[Chart]:
        made = [one for _, run in self._runs for one in run.validations]
        for name in sorted({name for one in made for name in one.metrics})[:_MAX_METRICS]:
            series = [
                Series(
                    of_run,
                    number,
                    [(v.step, v.metrics[name]) for v in run.validations if name in v.metrics],
                )
                for number, (of_run, run) in enumerate(self._runs, 1)
            ]
            yield self._chart(f"Validation: {name}", series, free_axis(series))

    def _series(self, value: Value) -> list[Series]:
        return [
            Series(name, number, _points(run, value))
            for number, (name, run) in enumerate(self._runs, 1)
        ]

    def _chart(
        self,
        title: str,
        series: Sequence[Series],
        y: Axis,
        *,
        write: Write = format_number,
        levels: Sequence[tuple[float, str]] = (),
        stepped: bool = False,
    ) -> Chart:
        summary = _summary(series, write)
        return chart(
            title, summary, series, self._x, y, skips=self._skips, levels=levels, stepped=stepped
        )


def _write_scale(scale: float) -> str:
    mantissa, exponent = math.frexp(scale)
    return power_of_two(exponent - 1) if mantissa == 0.5 else write_scale(scale)


def _summary(series: Sequence[Series], write: Write) -> str:
    if len(series) == 1:
        return _course(series[0], write, with_range=True)
    return "; ".join(f"{one.name}: {_course(one, write)}" for one in series)


def _course(series: Series, write: Write, with_range: bool = False) -> str:
    values = [value for _, value in series.points]
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return "never finite" if values else "not recorded"
    if min(finite) == max(finite):
        return f"{write(finite[0])} throughout"
    if not with_range:
        return f"{write(finite[0])} to {write(finite[-1])}"
    text = f"{write(finite[0])} at first, {write(finite[-1])} at last"
    return f"{text}, between {write(min(finite))} and {write(max(finite))}"


def _points(run: RunRecord, value: Value) -> list[Point]:
    found = ((step.step, value(step)) for step in run.steps)
    return [(step, number) for step, number in found if number is not None]


def _rate(group: int) -> Value:
    return lambda step: step.lr[group] if group < len(step.lr) else None


def _metric(name: str) -> Value:
    return lambda step: step.metrics.get(name)
