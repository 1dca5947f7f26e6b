"""A schedule that moves before the step it belongs to."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.rules.events import (
    BACKWARD,
    SCHEDULE,
    STEP,
    UPDATE,
    Event,
    Place,
    is_around,
    is_same_round,
)
from halfstep.rules.examples import SETUP
from halfstep.rules.ledger import Ledger
from halfstep.rules.rule import Hit, OrderRule


class ScheduleBeforeOptimizer(OrderRule):
    """A schedule that moves before the step it belongs to.

    What: `scheduler.step()` between the backward and the optimizer's step, or at the top of the
    loop. Why: the first rate of the schedule is never used, and every update runs one entry
    ahead. Source: torch, `LRScheduler.step` warns since 1.1.
    """

    severity = "warning"
    fixes = "unsafe"
    listens = (SCHEDULE, BACKWARD, STEP, UPDATE)
    message = "the schedule moves before the optimizer: the first learning rate is never used."
    remedy = "call scheduler.step() after the step of the optimizer."
    bad = (
        SETUP
        + """\
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
for x, y in batches:
    scaler.scale(loss_of(x, y)).backward()
    scheduler.step()  # <- HS110
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
    )
    good = (
        SETUP
        + """\
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
for x, y in batches:
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
        self._ahead: dict[str, Event] = {}
        self._first: dict[Place, Event | None] = {}
        self._before: dict[Place, Event] = {}  # the last time there, ahead of the first step
        self._idle: dict[Place, Event] = {}
        self._num_updates = 0

    def on_event(self, event: Event, ledger: Ledger) -> Iterator[Hit]:
        self._num_updates += event.kind == UPDATE
        for optimizer in event.optimizers:
            if event.kind == BACKWARD:
                self._ahead.pop(optimizer, None)
            elif event.kind == STEP:
                ahead = self._ahead.pop(optimizer, None)
                if ahead and not _is_per_epoch(ahead, event):
                    yield Hit(ahead, (event, "the step it should follow"))
                for place, step in self._first.items():
                    if step is None and is_same_round(self._before[place], event):
                        self._first[place] = event
            else:
                yield from self._schedule(event, ledger, optimizer)

    def _schedule(self, event: Event, ledger: Ledger, optimizer: str) -> Iterator[Hit]:
        if event.fact("epoch"):  # it is told which rate to take
            return
        window = ledger.window(optimizer)
        if window.known and window.waiting():
            self._ahead[optimizer] = event
        step = self._first.get(event.where)
        if step and _is_per_epoch(event, step):
            return
        if step:  # it was there before the first step, and it is there again: it opens the loop
            yield Hit(event, (step, "the step it should follow"))
        elif window.born and not ledger.num_steps.get(optimizer) and not ledger.opaque:
            if event.where in self._first:
                self._idle[event.where] = event
            self._first[event.where] = None
            self._before[event.where] = event

    def finish(self, ledger: Ledger) -> Iterator[Hit]:
        for event in self._idle.values() if self._num_updates > 1 else ():
            if not any(ledger.num_steps.get(o) for o in event.optimizers) and not ledger.opaque:
                yield Hit(event, message="the schedule moves, and its optimizer never steps.")


def _is_per_epoch(schedule: Event, step: Event) -> bool:
    """Whether the schedule stands behind the loop of the step: an epoch may have no step."""
    same_file = schedule.where.path == step.where.path
    return same_file and schedule.where.line > step.where.line and is_around(schedule, step)
