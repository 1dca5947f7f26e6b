"""A run in one sentence, and how good that is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from halfstep.records import RunRecord, StepRecord
from halfstep.records.step import format_number
from halfstep.report.run_facts import write_percent, write_scale
from halfstep.report.verdict import Level, Verdict

_MANY_SKIPS = 0.02  # a dynamic scale costs one skip in some 2,000 steps
_ENOUGH_TO_JUDGE = 20  # updates


def run_verdict(run: RunRecord) -> Verdict:
    """Judge a run by its record alone."""
    level, headline = _broken(run) or _stopped(run) or _suspicious(run) or ("good", _course(run))
    return Verdict(level, headline, tuple(_details(run)))


def _broken(run: RunRecord) -> tuple[Level, str] | None:
    steps = run.steps
    if run.status == "collapsed":
        return "bad", f"The run collapsed: its last {_skips_at_end(steps):,} steps were skipped."
    if steps and not run.num_updates:
        return "bad", f"Nothing was learned: {_all(len(steps))} skipped."
    since = _not_finite_since(steps)
    return None if since is None else ("bad", f"The loss is not finite from step {since:,} on.")


def _stopped(run: RunRecord) -> tuple[Level, str] | None:
    if not run.steps:
        return "note", "The run made no step."
    wanted = run.settings.get("steps")
    of_them = f"{len(run.steps):,} of {wanted:,} steps" if wanted else f"{len(run.steps):,} steps"
    if run.status == "interrupted":
        return "note", f"The run was interrupted after {of_them}."
    if run.status == "running":
        return "note", f"The record ends after {of_them}: the run was killed, or still goes on."
    return None


def _suspicious(run: RunRecord) -> tuple[Level, str] | None:
    steps = run.steps
    for step in steps:
        if step.fallback:
            where = f"at step {step.step:,}, because its loss scale collapsed"
            return "note", f"The run left {run.format} for {step.fallback} {where}."
    later = sum(step.skipped for step in steps[_search(steps) :])
    if later > max(1, _MANY_SKIPS * len(steps)):
        when = "after the loss scale had found its place" if _search(steps) else "on the way"
        return "note", f"{later:,} of {len(steps):,} steps were skipped {when}."
    found = [step.diagnosis for step in steps if step.diagnosis is not None]
    innocent = [one for one in found if one.verdict in ("never_finite", "bad_batch")]
    if innocent:
        what = "one skip is" if len(innocent) == 1 else f"{len(innocent):,} skips are"
        return "note", f"The run went through, but {what} not the loss scale's doing."
    first, last = _ends([step.loss for step in steps if step.updated])
    if last >= first and run.num_updates >= _ENOUGH_TO_JUDGE:
        change = f"{format_number(first)} at first, {format_number(last)} at last"
        return "note", f"The loss did not fall: {change}."
    return None


def _course(run: RunRecord) -> str:
    losses = [step.loss for step in run.steps if step.updated]
    made = f"{run.num_updates:,} update{'s' if run.num_updates > 1 else ''} in {run.format}"
    if len(losses) == 1:
        return f"{made}; the loss was {format_number(losses[0])}."
    return f"{made}; the loss went from {format_number(losses[0])} to {format_number(losses[-1])}."


def _details(run: RunRecord) -> Iterable[str]:
    steps = run.steps
    if run.status == "stopped":
        wanted = run.settings.get("steps")
        of_them = f"{len(steps):,} of {wanted:,} steps" if wanted else f"{len(steps):,} steps"
        yield f"The run's own rule stopped it after {of_them}."
    if run.num_skipped:
        yield _about_skips(run)
    diagnoses = [step.diagnosis for step in steps if step.diagnosis is not None]
    if diagnoses:
        yield f"The last diagnosis: {diagnoses[-1]}."
    clipped = sum(step.updated and step.clip_coef < 1 for step in steps)
    if clipped:
        share = "all" if clipped == run.num_updates else write_percent(clipped / run.num_updates)
        yield f"Clipping shortened {share} of the updates."
    zeros = [s.zero_gradient_fraction for s in steps if s.zero_gradient_fraction is not None]
    if zeros:
        yield f"{write_percent(statistics.fmean(zeros))} of the gradient values were exactly 0."


def _about_skips(run: RunRecord) -> str:
    searching = _search(run.steps)
    text = f"{run.num_skipped:,} of {len(run.steps):,} steps were skipped and moved nothing"
    if run.num_updates and searching == run.num_skipped:
        scale = write_scale(run.steps[searching - 1].next_loss_scale)
        text += f", all at the start, while the loss scale was searching: it settled at {scale}"
    return f"{text}."


def _search(steps: Sequence[StepRecord]) -> int:
    """Number of skips before the first update: how a dynamic scale finds its place."""
    return next((n for n, step in enumerate(steps) if step.updated), len(steps))


def _skips_at_end(steps: Sequence[StepRecord]) -> int:
    return next((n for n, step in enumerate(reversed(steps)) if step.updated), len(steps))


def _not_finite_since(steps: Sequence[StepRecord]) -> int | None:
    """First update of those with a non-finite loss that a run ends with, if it does."""
    since = None
    for step in reversed(steps):
        if step.updated and math.isfinite(step.loss):
            break
        since = step.step if step.updated else since
    return since


def _ends(losses: Sequence[float]) -> tuple[float, float]:
    """Median of the first and of the last tenth."""
    tenth = max(1, len(losses) // 10)
    return statistics.median(losses[:tenth]), statistics.median(losses[-tenth:])


def _all(count: int) -> str:
    return "its only step was" if count == 1 else f"all {count:,} steps were"
