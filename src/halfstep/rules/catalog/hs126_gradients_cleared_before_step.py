"""A step with nothing to step on."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.rules.events import STEP, Event
from halfstep.rules.examples import SETUP
from halfstep.rules.ledger import STEPPED, Ledger
from halfstep.rules.rule import Hit, OrderRule


class GradientsClearedBeforeStep(OrderRule):
    """A step with nothing to step on.

    What: `zero_grad` between the backward and the step, or no backward at all. Why: after
    `unscale_` there is no message and the weights never move; before it torch raises "No inf
    checks were recorded for this optimizer". Source: ``torch/amp/grad_scaler.py``, `step`.
    """

    severity = "error"
    listens = (STEP,)
    message = (
        "the gradients are cleared before the step that should use them: the weights never move."
    )
    remedy = "clear after the step, or before the first backward of the window."
    bad = (
        SETUP
        + """\
for x, y in batches:
    scaler.scale(loss_of(x, y)).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.zero_grad()  # <- HS126
    scaler.step(optimizer)
    scaler.update()
"""
    )
    good = (
        SETUP
        + """\
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""
    )

    def on_event(self, event: Event, ledger: Ledger) -> Iterator[Hit]:
        if not event.scaler or event.fact("closure"):
            return
        scale = ledger.scale(event.scaler)
        for optimizer in event.optimizers:
            window = ledger.window(optimizer)
            if not window.known or window.parts or scale.stage(optimizer) == STEPPED:
                continue
            if window.dropped and window.cleared:
                related = ((window.dropped[-1].event, "backward"), (event, "step"))
                yield Hit(window.cleared, *related)
            elif window.born and scale.born and not ledger.opaque:
                yield Hit(event, message="there are no gradients here: no backward comes before.")
