"""Gradients that are cleared after an update only, not after a skip."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.rules.events import STEP, Event
from halfstep.rules.examples import SETUP
from halfstep.rules.ledger import Ledger
from halfstep.rules.rule import Hit, OrderRule


class GradientsKeptAfterSkip(OrderRule):
    """Gradients that are cleared after an update only, not after a skip.

    What: `zero_grad` under the test that the step ran. Why: the inf or NaN of a skipped window
    stays in ``.grad``, every later window is non-finite, and the scale falls for ever. Source:
    ``torch/amp/grad_scaler.py``: nothing in it clears a gradient.
    """

    severity = "error"
    listens = (STEP,)
    message = "after a skipped step the gradients are still there: their inf or NaN stays for ever."
    remedy = "call optimizer.zero_grad() in every window, whether the step ran or not."
    bad = (
        SETUP
        + """\
for x, y in [(batches[0][0] * 1e30, batches[0][1]), *batches]:
    scaler.scale(loss_of(x, y)).backward()  # <- HS119
    scaler.step(optimizer)
    before = scaler.get_scale()
    scaler.update()
    if scaler.get_scale() >= before:
        optimizer.zero_grad()
"""
    )
    good = (
        SETUP
        + """\
for x, y in [(batches[0][0] * 1e30, batches[0][1]), *batches]:
    scaler.scale(loss_of(x, y)).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
    )

    def on_event(self, event: Event, ledger: Ledger) -> Iterator[Hit]:
        for window in ledger.windows(event):
            for part in window.waiting():
                if part.mixes() and part.after_skip:
                    yield Hit(part.event, (part.under, "may skip"))
