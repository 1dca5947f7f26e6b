"""`unscale_` for the second time in one window."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.rules.events import UNSCALE, Event
from halfstep.rules.examples import SETUP
from halfstep.rules.ledger import UNSCALED, Ledger
from halfstep.rules.rule import Hit, OrderRule


class UnscaleTwice(OrderRule):
    """`unscale_` for the second time in one window.

    What: two calls for one optimizer with no `update` between them, often one per micro-batch.
    Why: torch raises "unscale_() has already been called on this optimizer since the last
    update()". Source: ``torch/amp/grad_scaler.py``, `unscale_`.
    """

    severity = "error"
    listens = (UNSCALE,)
    message = "unscale_ is called twice for this optimizer in one window; torch raises here."
    remedy = "unscale once per optimizer, after the last backward of the window."
    bad = (
        SETUP
        + """\
for x, y in batches:
    scaler.scale(loss_of(x, y)).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.unscale_(optimizer)  # <- HS102
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
    )
    good = (
        SETUP
        + """\
for x, y in batches:
    scaler.scale(loss_of(x, y)).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
    )

    def on_event(self, event: Event, ledger: Ledger) -> Iterator[Hit]:
        scale = ledger.scale(event.scaler or "")
        for optimizer in event.optimizers:
            if scale.stage(optimizer) != UNSCALED:
                continue
            first, window = scale.reached(optimizer), ledger.window(optimizer)
            dropped = optimizer in scale.abandoned and (window.parts or not window.known)
            if dropped and not scale.has_raised(optimizer):
                continue  # HS112 speaks of the window that was dropped
            raised = scale.has_raised(optimizer)
            if (
                window.known and window.scaled() and not raised
            ):  # the first came too early: it is the one to go
                yield Hit(first, (event, "unscaled again"))
            else:
                yield Hit(event, (first, "unscaled before"))
