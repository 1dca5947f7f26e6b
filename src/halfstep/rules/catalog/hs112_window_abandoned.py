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
    remedy = (
        "call {scaler}.update() where the window is left (ahead of `continue`, say); it closes the"
        " window without a step."
    )
    bad = (
        SETUP
        + """\
for x, y in [(batches[0][0] * 1e30, batches[0][1]), *batches]:
    scaler.scale(loss_of(x, y)).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if not torch.isfinite(norm):
        optimizer.zero_grad()  # <- HS112
    else:
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
            if scale.has_raised(optimizer):  # HS102 speaks of it
                continue
            dropped = scale.abandoned.get(optimizer)
            if dropped and scale.stage(optimizer) == UNSCALED and ledger.window(optimizer).parts:
                idle = optimizer in scale.idle  # a misplaced unscale_, not a dropped window
                left = scale.left.get(optimizer)
                yield self._hit(event, dropped, scale.reached(optimizer), left, idle)

    def _hit(
        self, event: Event, dropped: Event, unscale: Event, left: Event | None, idle: bool
    ) -> Hit:
        again = event.where == unscale.where
        following = (None if again else event, "the next window")
        if idle:
            text = "nothing waits for a step here; the next window counts as unscaled."
            return Hit(unscale, following, message=text, scaler=event.scaler)
        if dropped.where.path == unscale.where.path and dropped.where.line < unscale.where.line:
            text = (
                "the window is left after this without step and update: {scaler} takes the next"
                " one for unscaled already."
            )
            related = (dropped, "the next round clears the gradients")
            if left is None:
                return Hit(unscale, related, message=text, scaler=event.scaler)
            text = text.replace("after this ", "here ")
            return Hit(left, (unscale, "unscaled"), related, message=text, scaler=event.scaler)
        if left and left.where.path == dropped.where.path and left.where.line > dropped.where.line:
            cleared = (dropped, "cleared")
            return Hit(left, (unscale, "unscaled"), cleared, following, scaler=event.scaler)
        return Hit(dropped, (unscale, "unscaled"), following, scaler=event.scaler)
