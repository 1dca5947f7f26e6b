"""A loss that was not scaled, in a window that a scaler divides."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.rules.events import STEP, UNSCALE, Event
from halfstep.rules.examples import SETUP
from halfstep.rules.ledger import UNSCALED, Ledger
from halfstep.rules.rule import Hit, OrderRule


class UnscaledBackward(OrderRule):
    """A loss that was not scaled, in a window that a scaler divides.

    What: `loss.backward()` without `scaler.scale`, then `scaler.step` or `unscale_`. Why: its
    gradients are divided by a scale they never had, so that this part of the loss counts for
    almost nothing. Source: torch, "Automatic Mixed Precision examples".
    """

    severity = "error"
    listens = (UNSCALE, STEP)
    message = "this loss is not scaled, but its gradients will be divided by the scale."
    remedy = "write {scaler}.scale(loss).backward()."
    bad = (
        SETUP
        + """\
for x, y in batches:
    loss_of(x, y).backward()  # <- HS108
    scaler.scale(loss_of(x, y)).backward()
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
            raw = [p for p in window.waiting() if p.scaler is None and p.unscaled is None]
            late = scale.stage(optimizer) == UNSCALED
            if not raw or not window.known:
                continue
            measured = len(window.clips) > raw[-1].num_clips
            if late and measured and event.fact("guarded"):
                continue
            text = "this comes after unscale_: nobody looks whether its gradients are finite."
            related = (event, "used here" if late else "divided by the scale")
            message = text if late else None
            where, used_by = raw[0].event, [window]
            yield Hit(where, related, message=message, used_by=used_by, scaler=event.scaler)
