"""Gradients cleared in every micro-batch of a window."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.rules.events import STEP, UPDATE, ZERO_GRAD, Event, is_deeper
from halfstep.rules.examples import SETUP
from halfstep.rules.ledger import Ledger
from halfstep.rules.rule import Hit, OrderRule


class MicroBatchCleared(OrderRule):
    """Gradients cleared in every micro-batch of a window.

    What: the step comes once in several micro-batches, and `zero_grad` in each of them. Why: only
    the last micro-batch reaches the step, divided by the number of all of them: the others cost
    time and change nothing. Source: torch, "Automatic Mixed Precision examples", gradient
    accumulation.
    """

    severity = "error"
    readers = "L"
    listens = (ZERO_GRAD, STEP, UPDATE)
    message = "this clears the gradients of every micro-batch but the last before the step."
    remedy = "clear once per window, after the step."
    bad = (
        SETUP
        + """\
for i, (x, y) in enumerate(batches):
    optimizer.zero_grad()  # <- HS132
    scaler.scale(loss_of(x, y) / 2).backward()
    if (i + 1) % 2 == 0:
        scaler.step(optimizer)
        scaler.update()
"""
    )
    good = (
        SETUP
        + """\
for i, (x, y) in enumerate(batches):
    scaler.scale(loss_of(x, y) / 2).backward()
    if (i + 1) % 2 == 0:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""
    )

    def __init__(self) -> None:
        self._dropped: dict[str, tuple[Event, Event]] = {}  # what cleared, and whose gradients

    def on_event(self, event: Event, ledger: Ledger) -> Iterator[Hit]:
        if event.kind == UPDATE:
            self._dropped.clear()
        for window in ledger.windows(event):
            optimizer = window.optimizer
            if event.kind == STEP:
                cleared, backward = self._dropped.pop(optimizer, (None, None))
                used = [part.event for part in window.waiting()]
                if cleared is None or backward is None or not used or is_deeper(event, used[-1]):
                    continue
                if all(one.where == backward.where for one in used):
                    yield Hit(cleared, (backward, "backward"), (event, "step"))
            elif window.waiting() and event.fact("unbroken"):
                part = window.waiting()[-1]
                if part.scaler and part.epoch == ledger.scale(part.scaler).epoch:
                    self._dropped.setdefault(optimizer, (event, part.event))
