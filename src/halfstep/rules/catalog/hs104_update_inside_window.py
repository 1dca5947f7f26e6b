"""`update` between a `scale` and the `step` that uses it, or with no step at all."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.rules.events import STEP, UNSCALE, UPDATE, Event
from halfstep.rules.examples import SETUP
from halfstep.rules.ledger import Ledger
from halfstep.rules.rule import Hit, OrderRule


class UpdateInsideWindow(OrderRule):
    """`update` between a `scale` and the `step` that uses it, or with no step at all.

    What: the scale may change after a loss was multiplied by it and before its gradients are
    divided by it; `update` also forgets what was unscaled. Why: gradients are divided by another
    scale or twice, silently; with nothing to look at, torch raises "No inf checks were recorded
    prior to update". Source: ``torch/amp/grad_scaler.py``; transformers issue 23905.
    """

    severity = "error"
    listens = (UPDATE, UNSCALE, STEP)
    message = "the scale is updated before the step that uses gradients scaled with it."
    remedy = "call {scaler}.update() once per window, after the last {scaler}.step()."
    bad = (
        SETUP
        + """\
for x, y in batches:
    for half in (slice(0, 4), slice(4, 8)):
        scaler.scale(loss_of(x[half], y[half]) / 2).backward()
        scaler.unscale_(optimizer)
        scaler.update()  # <- HS104
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
    )
    good = (
        SETUP
        + """\
for x, y in batches:
    for half in (slice(0, 4), slice(4, 8)):
        scaler.scale(loss_of(x[half], y[half]) / 2).backward()
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
        if event.kind == UPDATE:
            certain = scale.known and (scale.born or scale.update)
            if certain and not scale.checks and not event.fact("new_scale"):
                text = "no step since the last update() of this scaler; torch raises here."
                yield Hit(event, message=text, scaler=event.scaler)
            return
        for window in ledger.windows(event):
            for part in window.waiting():
                if part.scaler == event.scaler and part.epoch < scale.epoch and scale.update:
                    related = ((part.event, "scaled backward"), (event, "divided by the new scale"))
                    yield Hit(scale.update, *related, used_by=[window], scaler=event.scaler)
