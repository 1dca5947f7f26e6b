"""A new scaler for an optimizer that goes on."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.rules.events import LOAD, OPTIMIZER, SCALER, STEP, Event, Place
from halfstep.rules.examples import SETUP
from halfstep.rules.ledger import Ledger
from halfstep.rules.rule import Hit, OrderRule


class ScalerRecreated(OrderRule):
    """A new scaler for an optimizer that goes on.

    What: a scaler is made inside the loop over epochs while the optimizer was made before it.
    Why: every new scaler starts at `init_scale` with an empty growth counter, so that each epoch
    begins with a search for the scale and loses its first updates to overflow. Source: torch,
    `GradScaler`: "a single instance for the entire convergence run".
    """

    severity = "warning"
    listens = (SCALER, OPTIMIZER, LOAD, STEP)
    message = "a new scaler is made while the optimizer goes on: the search for the scale restarts."
    remedy = "make the scaler once, beside the optimizer, before the loop."
    bad = (
        SETUP
        + """\
for epoch in range(2):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)  # <- HS111
    for x, y in batches:
        scaler.scale(loss_of(x, y)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""
    )
    good = (
        SETUP
        + """\
for epoch in range(2):
    for x, y in batches:
        scaler.scale(loss_of(x, y)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""
    )

    def __init__(self) -> None:
        self._made: set[Place] = set()
        self._stepped: dict[str, Event] = {}
        self._outlived: dict[str, tuple[Event, Event]] = {}

    def on_event(self, event: Event, ledger: Ledger) -> Iterator[Hit]:
        if event.kind == SCALER:
            if event.where in self._made:
                self._outlived = {o: (event, step) for o, step in self._stepped.items()}
            self._made.add(event.where)
        elif event.kind == LOAD and event.scaler:  # it goes on with the state of the old one
            self._outlived = {}
        for optimizer in event.optimizers:
            if event.kind == OPTIMIZER:
                self._stepped.pop(optimizer, None)
                self._outlived.pop(optimizer, None)
            elif event.kind == STEP and event.scaler:
                self._stepped[optimizer] = event
                made, step = self._outlived.pop(optimizer, (None, None))
                if made:
                    yield Hit(made, (step, "has stepped with the one before"))
