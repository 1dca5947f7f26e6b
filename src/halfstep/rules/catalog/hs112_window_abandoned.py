"""A window that was unscaled and then dropped without `step` and `update`."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.rules.events import STEP, UNSCALE, Event
from halfstep.rules.examples import SETUP
from halfstep.rules.ledger import UNSCALED, Ledger
from halfstep.rules.rule import Hit, OrderRule


class WindowAbandoned(OrderRule):
    """A window that was unscaled and then dropped without `step` and `update`.

    What: gradients are cleared (often with `continue` after a look at the norm) while the scaler
    still holds the optimizer as unscaled. Why: the next `unscale_` raises, and without one the
    next step applies gradients that still carry the scale. Source: ``torch/amp/grad_scaler.py``,
    stages per optimizer.
    """

    severity = "error"
    listens = (UNSCALE, STEP)
    message = (
        "the window is dropped after unscale_: {scaler} takes the next one for unscaled already."
    )
    remedy = "call {scaler}.update() before you go on; it closes the window without a step."
    bad = (
        SETUP
        + """\
for x, y in [(batches[0][0] * 1e30, batches[0][1]), *batches]:
    scaler.scale(loss_of(x, y)).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if not torch.isfinite(norm):
        optimizer.zero_grad()  # <- HS112
        continue
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
    )
    good = (
        SETUP
        + """\
for x, y in [(batches[0][0] * 1e30, batches[0][1]), *batches]:
    scaler.scale(loss_of(x, y)).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if not torch.isfinite(norm):
        optimizer.zero_grad()
        scaler.update()
        continue
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
            dropped = scale.abandoned.get(optimizer)
            if dropped and scale.stage(optimizer) == UNSCALED and ledger.window(optimizer).parts:
                unscale, following = scale.reached(optimizer), (event, "the next window")
                if optimizer in scale.idle:  # a misplaced unscale_, not a dropped window
                    text = "nothing waits for a step here; the next window counts as unscaled."
                    yield Hit(unscale, following, message=text, scaler=event.scaler)
                else:
                    yield Hit(dropped, (unscale, "unscaled"), following, scaler=event.scaler)
