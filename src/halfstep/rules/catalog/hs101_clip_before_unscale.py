"""Clipping of gradients that still carry the loss scale."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.rules.events import CLIP, Event
from halfstep.rules.examples import SETUP
from halfstep.rules.ledger import Ledger
from halfstep.rules.rule import Hit, OrderRule


class ClipBeforeUnscale(OrderRule):
    """Clipping of gradients that still carry the loss scale.

    What: a norm, value or hand-written clip between the scaled backward and `unscale_`, or with no
    `unscale_` at all. Why: the gradients are S times too large, so that the effective limit is
    ``max_norm / S`` and every update is far too small. Source: torch, "Automatic Mixed Precision
    examples", section on gradient clipping; Lightning issue 9694.
    """

    severity = "error"
    fixes = "unsafe"
    listens = (CLIP,)
    message = (
        "the gradients still carry the loss scale here, so that they are clipped to limit / scale."
    )
    remedy = "call {scaler}.unscale_(optimizer) once, after the last backward and before this line."
    bad = (
        SETUP
        + """\
for x, y in batches:
    scaler.scale(loss_of(x, y)).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # <- HS101
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
        if event.fact("max_norm") == float("inf") or event.fact("max_norm_scaled"):
            return
        windows = [window for window in ledger.windows(event) if window.scaled()]
        if windows and not any(window.unscaled() for window in ledger.windows(event)):
            backward = windows[-1].scaled()[-1].event
            related = (backward, "scaled backward")
            yield Hit(event, related, used_by=windows, scaler=backward.scaler)
