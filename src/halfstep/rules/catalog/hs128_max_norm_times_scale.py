"""A limit multiplied by the loss scale, for gradients that do not carry it."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.rules.events import CLIP, Event
from halfstep.rules.examples import SETUP
from halfstep.rules.ledger import Ledger
from halfstep.rules.rule import Hit, OrderRule


class MaxNormTimesScale(OrderRule):
    """A limit multiplied by the loss scale, for gradients that do not carry it.

    What: ``max_norm * scaler.get_scale()`` after `unscale_`. Why: the gradients have their true
    size by then, and a limit S times too large never clips. While they are scaled the product is
    right, and nothing is said. Source: torch, "Automatic Mixed Precision examples".
    """

    severity = "error"
    readers = "L"
    listens = (CLIP,)
    message = "these gradients are unscaled: a limit multiplied by the loss scale never clips."
    remedy = "pass max_norm as it is."
    bad = (
        SETUP
        + """\
for x, y in batches:
    scaler.scale(loss_of(x, y)).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0 * scaler.get_scale())  # <- HS128
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
        if not event.fact("max_norm_scaled"):
            return
        clean = [w for w in ledger.windows(event) if w.unscaled() and not w.scaled()]
        if clean:
            yield Hit(event, (clean[-1].unscaled()[-1].unscaled, "unscaled"))
