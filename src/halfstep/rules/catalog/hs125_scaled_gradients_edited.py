"""Gradients that are changed while they carry the loss scale."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.rules.events import EDIT, Event
from halfstep.rules.examples import SETUP
from halfstep.rules.ledger import Ledger
from halfstep.rules.rule import Hit, OrderRule

_TEXTS = {
    "nan": None,
    "add": "these gradients carry the loss scale: what is added here is divided by it later.",
    "limit": "these gradients carry the loss scale: the limit here means limit / scale.",
    "hook": "this hook gets gradients that carry the loss scale: its limit means limit / scale.",
}


class ScaledGradientsEdited(OrderRule):
    """Gradients that are changed while they carry the loss scale.

    What: NaN and inf are replaced, or noise or weight decay is added, between the scaled backward
    and `unscale_`. Why: replaced values hide the overflow, so that the step is not skipped, the
    broken gradient is applied, and the scale never falls; what is added is divided by the scale
    later. A factor does no harm. Source: torch, `GradScaler.unscale_`: the check looks there.
    """

    severity = "error"
    listens = (EDIT,)
    message = "the overflow is wiped out before {scaler} looks for it: a broken step is applied."
    remedy = "call {scaler}.unscale_(optimizer) first; then {scaler} has seen the gradients."
    bad = (
        SETUP
        + """\
for x, y in batches:
    scaler.scale(loss_of(x, y)).backward()
    for p in model.parameters():
        p.grad.nan_to_num_()  # <- HS125
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
    for p in model.parameters():
        p.grad.nan_to_num_()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
    )

    def on_event(self, event: Event, ledger: Ledger) -> Iterator[Hit]:
        how = event.fact("how")
        if how not in _TEXTS:
            return
        windows = [window for window in ledger.windows(event) if window.scaled()]
        if windows:
            backward = windows[-1].scaled()[-1].event
            related, message = (backward, "scaled backward"), _TEXTS[how]
            yield Hit(event, related, message=message, used_by=windows, scaler=backward.scaler)
