"""`update` between a `scale` and the `step` that uses it, or with no step at all."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.rules.events import BACKWARD, STEP, UNSCALE, UPDATE, ZERO_GRAD, Event
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
    listens = (UPDATE, UNSCALE, STEP, BACKWARD, ZERO_GRAD)
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

    def __init__(self) -> None:
        self._stepped: set[str] = set()  # optimizers, since the last backward
        self._cleared: set[str] = set()
        self._update: dict[str, Event] = {}  # scaler to its update since the last backward

    def on_event(self, event: Event, ledger: Ledger) -> Iterator[Hit]:
        yield from self._on_known(event, ledger)
        yield from self._on_any(event, ledger)

    def _on_any(self, event: Event, ledger: Ledger) -> Iterator[Hit]:
        """Optimizers whose parameters are not known step twice after one backward."""
        if event.kind == BACKWARD:
            self._stepped, self._cleared, self._update = set(), set(), {}
        elif event.kind == ZERO_GRAD:
            self._cleared.update(event.optimizers, event.maybe)
        elif event.kind == UPDATE and event.scaler:
            self._update[event.scaler] = event
        elif event.kind == STEP and event.scaler:
            update = self._update.get(event.scaler)
            new = {o for o in event.optimizers if o not in self._stepped | self._cleared}
            if update and self._stepped and any(not ledger.window(o).known for o in new):
                yield Hit(update, (event, "divided by the new scale"), scaler=event.scaler)
            self._stepped.update(event.optimizers)

    def _on_known(self, event: Event, ledger: Ledger) -> Iterator[Hit]:
        if not event.scaler or event.kind in (BACKWARD, ZERO_GRAD):
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
