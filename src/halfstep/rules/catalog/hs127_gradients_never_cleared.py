"""A backward on top of gradients that a step has used."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.rules.events import STEP, Event
from halfstep.rules.examples import SETUP
from halfstep.rules.ledger import Ledger
from halfstep.rules.rule import Hit, OrderRule


class GradientsNeverCleared(OrderRule):
    """A backward on top of gradients that a step has used.

    What: no `zero_grad` between the windows. Why: the old gradients are unscaled and the new ones
    scaled, so that the old ones shrink by S while the new ones count in full: neither one window
    nor a running sum. Source: torch, `Tensor.backward` accumulates.
    """

    severity = "error"
    listens = (STEP,)
    message = "this adds to gradients that a step has used already; nothing clears them."
    remedy = "call optimizer.zero_grad() once per window."
    bad = (
        SETUP
        + """\
for x, y in batches:
    scaler.scale(loss_of(x, y)).backward()  # <- HS127
    scaler.step(optimizer)
    scaler.update()
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
        for window in ledger.windows(event):
            for part in window.waiting():
                if part.mixes() and not part.after_skip:
                    yield Hit(part.event, (part.under, "step"))
