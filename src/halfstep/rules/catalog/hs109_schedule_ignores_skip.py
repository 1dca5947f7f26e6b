"""A schedule, average or clock that moves although the step was skipped."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator

from halfstep.rules.events import (
    EMA,
    SCHEDULE,
    STEP,
    UPDATE,
    ZERO_GRAD,
    Event,
    Place,
    is_around,
    is_same_round,
)
from halfstep.rules.examples import SETUP
from halfstep.rules.ledger import Ledger
from halfstep.rules.rule import Hit, OrderRule


class ScheduleIgnoresSkip(OrderRule):
    """A schedule, average or clock that moves although the step was skipped.

    What: `scheduler.step()` once per update, with no test whether `scaler.step` did anything. Why:
    the rate falls, or the average moves, on updates that never happened; a few skips at the start
    of a run are normal, so that this is a note until a run shows that it mattered. Source: torch,
    `GradScaler.step`; pytorch issue 67590.
    """

    severity = "note"
    listens = (STEP, UPDATE, ZERO_GRAD, SCHEDULE, EMA)
    message = "this moves even where {scaler}.step() skipped the update."
    remedy = (
        "compare the scale: `before = {scaler}.get_scale()` ahead of update(), and step only if"
        " it did not fall."
    )
    bad = (
        SETUP
        + """\
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 30)
for x, y in [(batches[0][0] * 1e30, batches[0][1]), *batches]:
    scaler.scale(loss_of(x, y)).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    scheduler.step()  # <- HS109
"""
    )
    good = (
        SETUP
        + """\
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 30)
for x, y in [(batches[0][0] * 1e30, batches[0][1]), *batches]:
    scaler.scale(loss_of(x, y)).backward()
    scaler.step(optimizer)
    before = scaler.get_scale()
    scaler.update()
    optimizer.zero_grad()
    if scaler.get_scale() >= before:
        scheduler.step()
"""
    )

    def __init__(self) -> None:
        self._steps: dict[tuple[str, str | None], list[Place]] = {}
        self._scaled: dict[str, Event] = {}
        self._ahead: dict[str, Event] = {}
        self._told: dict[Place, list[Hashable]] = {}  # what a schedule was told, time after time
        self._waiting: dict[Place, Hit] = {}  # of schedules that were told something

    def on_event(self, event: Event, ledger: Ledger) -> Iterator[Hit]:
        for optimizer in [*self._ahead] if event.kind == UPDATE else event.optimizers:
            if event.kind == STEP:
                self._step(event, optimizer)
            elif event.kind in (UPDATE, ZERO_GRAD):  # what went ahead has its step now, or never
                yield from self._follow(self._ahead.pop(optimizer, None), ledger, optimizer)
            elif self._once_per_step(event, ledger, optimizer):
                if ledger.window(optimizer).waiting():
                    self._ahead[optimizer] = event
                else:
                    yield from self._follow(event, ledger, optimizer)

    def _step(self, event: Event, optimizer: str) -> None:
        if event.scaler:
            self._scaled[optimizer] = event
        if optimizer in self._ahead and self._ahead[optimizer].kind == SCHEDULE:
            del self._ahead[optimizer]  # HS110 speaks of it
        for (of, _), steps in self._steps.items():
            if of == optimizer:
                steps.append(event.where)

    def _once_per_step(self, event: Event, ledger: Ledger, optimizer: str) -> bool:
        """One line stepped more than once since: it moves per epoch, a skip is nothing to it."""
        steps = self._steps.get((optimizer, event.model))
        self._steps[optimizer, event.model] = []
        if steps is None:
            steps = [event.where] * ledger.num_steps.get(optimizer, 0)
        step = self._scaled.get(optimizer)
        outside = step is not None and is_around(event, step)
        waiting = bool(ledger.window(optimizer).waiting())
        now_and_then = event.kind == EMA and step is not None and _is_beside(event, step)
        return (
            not outside
            and (len(set(steps)) == len(steps) or now_and_then)
            and (bool(steps) or waiting)
        )

    def _follow(self, event: Event | None, ledger: Ledger, optimizer: str) -> Iterator[Hit]:
        """What moves with the last step, whether that was skipped or not."""
        step, skipped = self._scaled.get(optimizer), ledger.window(optimizer).skipped
        if event and step and (not event.fact("guarded") if skipped is None else skipped):
            hit = Hit(event, (step, "may skip"), scaler=step.scaler)
            if event.fact("position") is None:
                yield hit
            else:
                self._told.setdefault(event.where, []).append(event.fact("position"))
                self._waiting[event.where] = hit

    def finish(self, ledger: Ledger) -> Iterator[Hit]:
        """Of schedules that were told something new each time; ``step(epoch)`` does not move."""
        for place, told in self._told.items():
            if len(told) > 1 and all(a != b for a, b in itertools.pairwise(told)):
                yield self._waiting[place]


def _is_beside(event: Event, step: Event) -> bool:
    """Whether both stand in one loop, and are run in the same round of it."""
    loops = event.fact("loops")
    return bool(loops) and loops == step.fact("loops") and is_same_round(event, step)
