"""A clip while there are no gradients yet."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.rules.events import BACKWARD, CLIP, STEP, ZERO_GRAD, Event
from halfstep.rules.examples import SETUP
from halfstep.rules.ledger import Ledger
from halfstep.rules.rule import Hit, OrderRule


class ClipBeforeBackward(OrderRule):
    """A clip while there are no gradients yet.

    What: the clip stands between `zero_grad` and the backward, and nothing clips between the
    backward and the step. Why: there is nothing to clip; the step uses gradients of whatever size,
    and no message says so. Source: torch, `clip_grad_norm_` skips parameters without gradients.
    """

    severity = "warning"
    listens = (CLIP, BACKWARD, STEP, ZERO_GRAD)
    message = "there are no gradients to clip yet: the step uses them as they come."
    remedy = "clip between the backward and the step, after scaler.unscale_(optimizer)."
    bad = (
        SETUP
        + """\
for x, y in batches:
    optimizer.zero_grad()
    loss = loss_of(x, y)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # <- HS131
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
    )
    good = (
        SETUP
        + """\
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""
    )

    def __init__(self) -> None:
        self._early: dict[str, Event] = {}  # optimizer to the clip that found nothing
        self._backward: dict[str, Event] = {}

    def on_event(self, event: Event, ledger: Ledger) -> Iterator[Hit]:
        for optimizer in (*event.optimizers, *event.maybe):
            if event.kind == CLIP:
                self._clip(optimizer, event, ledger)
            elif event.kind == BACKWARD and optimizer in self._early:
                self._backward.setdefault(optimizer, event)
            elif event.kind == ZERO_GRAD:
                self._forget(optimizer)
            elif event.kind == STEP:
                clip, backward = self._forget(optimizer)
                if clip and backward and optimizer in event.optimizers:
                    yield Hit(clip, (backward, "the gradients come here"))

    def _clip(self, optimizer: str, event: Event, ledger: Ledger) -> None:
        window = ledger.window(optimizer)
        certain = optimizer in event.optimizers and window.known
        if certain and not window.parts and (window.cleared or window.born):
            self._early[optimizer] = event
        else:
            self._forget(optimizer)

    def _forget(self, optimizer: str) -> tuple[Event | None, Event | None]:
        return self._early.pop(optimizer, None), self._backward.pop(optimizer, None)
