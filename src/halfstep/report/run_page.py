"""The page of one run, or of several side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from halfstep.records import BadValueError, RunRecord, StepRecord
from halfstep.report.charts import MAX_COLOURS
from halfstep.report.page import render
from halfstep.report.run_charts import NamedRuns, run_charts
from halfstep.report.run_facts import facts, origin, uses_scale
from halfstep.report.run_verdict import run_verdict
from halfstep.report.skips import skip_rows

_MAX_SKIP_ROWS = 200
_MAX_STEP_ROWS = 40
_MAX_EMBEDDED_STEPS = 500
_EMBEDDED_OF_LONG_RUN = 250


def run_page(runs: Sequence[RunRecord], names: Sequence[str] | None = None) -> str:
    """HTML of a page about one to six runs.

    Args:
        runs: Their records.
        names: One per run, to tell them apart; default: their formats.

    Raises:
        BadValueError: No run, too many runs, or Jinja2 is not installed.
    """
    if not 1 <= len(runs) <= MAX_COLOURS:
        raise BadValueError(f"a page shows 1 to {MAX_COLOURS} runs, got {len(runs)}.")
    chosen = _distinct(names or [run.format for run in runs])
    named = list(zip(chosen, runs, strict=True))
    rows = [row for name, run in named for row in skip_rows(name, run)]
    results = [facts(run) for run in runs]
    labels = dict.fromkeys(label for result in results for label in result)
    if chosen == [run.format for run in runs]:
        labels.pop("format")
    return render(
        "run.html",
        data={"halfstep_page": "run", "runs": [_embedded(run) for run in runs]},
        title=_title(named),
        names=chosen,
        verdicts=[run_verdict(run) for run in runs],
        facts=results,
        labels=list(labels),
        origins=[origin(run) for run in runs],
        charts=run_charts(named),
        notes=list(_notes(named)),
        skips=rows[:_MAX_SKIP_ROWS],
        num_skip_rows=len(rows),
        num_skipped=sum(run.num_skipped for run in runs),
        num_steps=sum(len(run.steps) for run in runs),
        steps=_thinned(runs[0].steps, _MAX_STEP_ROWS) if len(runs) == 1 else [],
    )


def _distinct(names: Sequence[str]) -> list[str]:
    """The names, with a number behind those that came before."""
    found: list[str] = []
    for name in names:
        count = 1 + sum(other == name for other in names[: len(found)])
        found.append(name if count == 1 else f"{name} ({count})")
    return found


def _title(runs: NamedRuns) -> str:
    recipes = dict.fromkeys(run.recipe for _, run in runs)
    names = [name for name, _ in runs]
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return f"{', '.join(recipes)} in {listed}"


def _notes(runs: NamedRuns) -> Iterator[str]:
    """What a reader may miss, and how to get it."""
    unscaled = [name for name, run in runs if run.steps and not uses_scale(run)]
    if unscaled:
        yield f"No loss scale in {', '.join(unscaled)}: it needs none, or it was fixed at 1."
    steps = [step for _, run in runs for step in run.steps]
    if steps and all(step.zero_gradient_fraction is None for step in steps):
        yield (
            "The share of zero gradients was not recorded; halfstep train --report counts it while"
            " the run goes on."
        )
    if any(step.reason == "non_finite" and step.diagnosis is None for step in steps):
        yield (
            "Skips without a diagnosis: --diagnose on_skip runs a skipped window again and names"
            " the op that broke."
        )
    reduced = [name for name, run in runs if len(run.steps) > _MAX_EMBEDDED_STEPS]
    if reduced:
        yield (
            "Long runs are drawn as a median inside the range between smallest and largest value,"
            " and this page carries some of their steps only; halfstep train --record keeps all."
        )


def _embedded(run: RunRecord) -> dict[str, Any]:
    """The record; of a long run an even selection of steps, with every first skip in a row."""
    if len(run.steps) <= _MAX_EMBEDDED_STEPS:
        return run.to_dict()
    firsts = {row.first for row in skip_rows("", run)[:_MAX_SKIP_ROWS]}
    even = {step.step for step in _thinned(run.steps, _EMBEDDED_OF_LONG_RUN)}
    kept = [step for step in run.steps if step.step in firsts | even]
    return replace(run, steps=kept).to_dict()


def _thinned(steps: Sequence[StepRecord], limit: int) -> list[StepRecord]:
    """An even selection with the first and the last."""
    if len(steps) <= limit:
        return list(steps)
    return [steps[round(n * (len(steps) - 1) / (limit - 1))] for n in range(limit)]
