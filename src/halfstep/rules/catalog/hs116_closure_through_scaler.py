"""A closure given to `scaler.step`."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.rules.events import STEP, Event
from halfstep.rules.examples import SETUP
from halfstep.rules.ledger import Ledger
from halfstep.rules.rule import Hit, OrderRule


class ClosureThroughScaler(OrderRule):
    """A closure given to `scaler.step`.

    What: ``scaler.step(optimizer, closure)``. Why: the scaler looks at the gradients before the
    closure runs; those that the closure makes are neither unscaled nor checked, and they are what
    the optimizer uses. torch refuses ``closure=`` by name; by position it lets it pass. Source:
    ``torch/amp/grad_scaler.py``, `step`.
    """

    severity = "error"
    listens = (STEP,)
    message = (
        "the closure makes new gradients after {scaler} has looked: they are neither unscaled nor"
        " checked."
    )
    remedy = (
        "use an optimizer that needs no closure, or train without a scaler (BF16 needs none) and"
        " call optimizer.step(closure)."
    )
    bad = (
        SETUP
        + """\
for x, y in batches:
    def closure():
        optimizer.zero_grad()
        loss = loss_of(x, y)
        scaler.scale(loss).backward()
        return loss

    closure()
    scaler.step(optimizer, closure)  # <- HS116
    scaler.update()
    optimizer.zero_grad()
"""
    )
    good = (
        SETUP
        + """\
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.step(optimizer)
    scaler.update()
"""
    )

    def on_event(self, event: Event, ledger: Ledger) -> Iterator[Hit]:
        if event.scaler and event.fact("closure") is True:
            yield Hit(event, scaler=event.scaler)
