"""A scaled backward after the `unscale_` of its window."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.rules.events import STEP, UNSCALE, Event
from halfstep.rules.examples import SETUP
from halfstep.rules.ledger import UNSCALED, Ledger, Window
from halfstep.rules.rule import Hit, OrderRule


class BackwardAfterUnscale(OrderRule):
    """A scaled backward after the `unscale_` of its window.

    What: `unscale_` before the last micro-batch of an accumulation window. Why: torch unscales
    once per window, so that the later gradients keep the scale and drown the others. Source:
    ``torch/amp/grad_scaler.py``; torch, "Automatic Mixed Precision examples", accumulation.
    """

    severity = "error"
    listens = (UNSCALE, STEP)
    message = (
        "this unscales the window too early: a later backward adds gradients that keep the scale."
    )
    remedy = "call {scaler}.unscale_(optimizer) after the last backward of the window."
    bad = (
        SETUP
        + """\
for x, y in batches:
    scaler.scale(loss_of(x[:4], y[:4]) / 2).backward()
    scaler.unscale_(optimizer)  # <- HS129
    scaler.scale(loss_of(x[4:], y[4:]) / 2).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
    )
    good = (
        SETUP
        + """\
for x, y in batches:
    scaler.scale(loss_of(x[:4], y[:4]) / 2).backward()
    scaler.scale(loss_of(x[4:], y[4:]) / 2).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
    )

    def on_event(self, event: Event, ledger: Ledger) -> Iterator[Hit]:
        if not event.scaler:
            return
        scale = ledger.scale(event.scaler)
        if event.kind == UNSCALE:
            if scale.born and not scale.used and not ledger.opaque:
                text = "nothing was scaled before this line; torch raises here."
                yield Hit(event, message=text, scaler=event.scaler)
            return
        for optimizer in event.optimizers:
            if scale.stage(optimizer) != UNSCALED or optimizer in scale.abandoned:
                continue
            window = ledger.window(optimizer)
            if window.known and window.scaled():
                yield self._hit(window, scale.reached(optimizer), event.scaler)

    def _hit(self, window: Window, unscale: Event, scaler: str) -> Hit:
        late = window.scaled()[0]
        if window.unscaled() and late.num_clips > window.unscaled()[-1].num_clips:
            text = "this comes after unscale_ and the clip: its gradients keep the scale."
            return Hit(late.event, (unscale, "unscaled"), message=text, scaler=scaler)
        return Hit(unscale, (late.event, "backward"), scaler=scaler)
