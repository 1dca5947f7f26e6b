"""No `update` between the step of one window and the next."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.rules.events import STEP, UNSCALE, Event
from halfstep.rules.examples import SETUP
from halfstep.rules.ledger import STEPPED, Ledger
from halfstep.rules.rule import Hit, OrderRule


class UpdateMissing(OrderRule):
    """No `update` between the step of one window and the next.

    What: `scaler.step` (or `unscale_`) of a new window while the last one was never closed. Why:
    torch raises "step() has already been called since the last update()" in the second window.
    Source: ``torch/amp/grad_scaler.py``, `step`.
    """

    severity = "error"
    listens = (UNSCALE, STEP)
    message = "no {scaler}.update() follows this step; torch raises in the next window."
    remedy = "call {scaler}.update() after it, once per window."
    bad = (
        SETUP
        + """\
for x, y in batches:
    scaler.scale(loss_of(x, y)).backward()
    scaler.step(optimizer)  # <- HS105
    optimizer.zero_grad()
"""
    )
    good = (
        SETUP
        + """\
for x, y in batches:
    scaler.scale(loss_of(x, y)).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
    )

    def on_event(self, event: Event, ledger: Ledger) -> Iterator[Hit]:
        if not event.scaler:
            return
        scale = ledger.scale(event.scaler)
        for optimizer in event.optimizers:
            window = ledger.window(optimizer)
            if scale.stage(optimizer) == STEPPED and window.known and window.waiting():
                step = scale.reached(optimizer)
                yield Hit(step, (event, "the next window"), scaler=event.scaler)
