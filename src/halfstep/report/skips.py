"""Skipped steps as the rows of a table: neighbours with one cause are one row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from halfstep.records import RunRecord, StepRecord

REASONS = {
    "non_finite": "a gradient was inf or NaN",
    "empty_window": "the window's divisor was 0",
    "together": "another optimizer had to hold",
    "no_gradient": "no parameter received a gradient",
}


@dataclass(frozen=True, slots=True)
class SkipRow:
    """Skips in a row with the same cause.

    Attributes:
        run: Name of the run.
        first: First step.
        last: Last step.
        reason: In words.
        scale: Loss scale before the first.
        next_scale: Loss scale after the last.
        diagnosis: What a replay found, in words; empty without one.
        fallback: Format that the run went on in afterwards, if it did.
    """

    run: str
    first: int
    last: int
    reason: str
    scale: float
    next_scale: float
    diagnosis: str
    fallback: str | None

    @property
    def count(self) -> int:
        """Number of skips."""
        return self.last - self.first + 1


def skip_rows(name: str, run: RunRecord) -> list[SkipRow]:
    """All skips of a run, in order."""
    return [_row(name, group) for group in _groups(step for step in run.steps if step.skipped)]


def _groups(skipped: Iterable[StepRecord]) -> list[list[StepRecord]]:
    groups: list[list[StepRecord]] = []
    for step in skipped:
        before = groups[-1][-1] if groups else None
        follows = before is not None and step.step == before.step + 1
        if follows and before is not None and _cause(before) == _cause(step):
            groups[-1].append(step)
        else:
            groups.append([step])
    return groups


def _cause(step: StepRecord) -> tuple[object, ...]:
    found = step.diagnosis
    place = found and (found.verdict, found.op, found.module, found.phase, found.dtype)
    return step.reason, place


def _row(name: str, group: list[StepRecord]) -> SkipRow:
    first, last = group[0], group[-1]
    return SkipRow(
        run=name,
        first=first.step,
        last=last.step,
        reason=REASONS.get(first.reason or "", first.reason or ""),
        scale=first.loss_scale,
        next_scale=last.next_loss_scale,
        diagnosis=str(first.diagnosis) if first.diagnosis else "",
        fallback=last.fallback,
    )
