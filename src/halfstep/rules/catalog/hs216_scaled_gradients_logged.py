"""Norms and histograms of gradients that carry the loss scale."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.rules.events import LOGGED, MEASURED, Event
from halfstep.rules.examples import SETUP
from halfstep.rules.ledger import Ledger
from halfstep.rules.rule import Hit, OrderRule


class ScaledGradientsLogged(OrderRule):
    """Norms and histograms of gradients that carry the loss scale.

    What: a norm is measured between the scaled backward and `unscale_`, and printed or logged.
    Why: it is S times the norm, and S changes: the curve jumps by powers of two, and its level says
    nothing of the gradients. Source: torch, "Automatic Mixed Precision examples", working with
    unscaled gradients.
    """

    severity = "warning"
    readers = "L"
    listens = (MEASURED, LOGGED)
    message = "this shows gradients times the loss scale, and the scale changes: it is no measure."
    remedy = "call {scaler}.unscale_(optimizer) before the gradients are measured."
    bad = (
        SETUP
        + """\
for x, y in batches:
    scaler.scale(loss_of(x, y)).backward()
    norm = model.weight.grad.norm()
    print("norm", norm.item())  # <- HS216
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
    norm = model.weight.grad.norm()
    print("norm", norm.item())
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
    )

    def __init__(self) -> None:
        self._scaled: dict[str, Event] = {}  # measure to the backward whose scale it carries

    def on_event(self, event: Event, ledger: Ledger) -> Iterator[Hit]:
        measure = event.model or ""
        if event.kind == LOGGED:
            backward = self._scaled.get(measure)
            if backward is not None:
                yield Hit(event, (backward, "scaled backward"), scaler=backward.scaler)
            return
        windows = list(ledger.windows(event))
        scaled = [window for window in windows if window.scaled()]
        if scaled and not any(window.unscaled() for window in windows):
            self._scaled[measure] = scaled[-1].scaled()[-1].event
