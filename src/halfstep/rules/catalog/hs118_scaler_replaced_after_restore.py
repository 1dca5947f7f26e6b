"""A scaler that is made anew after its state was loaded."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.rules.events import LOAD, SCALE, SCALER, Event
from halfstep.rules.examples import SETUP
from halfstep.rules.ledger import Ledger
from halfstep.rules.rule import Hit, OrderRule


class ScalerReplacedAfterRestore(OrderRule):
    """A scaler that is made anew after its state was loaded.

    What: `scaler.load_state_dict`, then another `GradScaler` under the same name. Why: what was
    restored is thrown away, and the run goes on from `init_scale` as if nothing had been saved.
    Source: torch, `GradScaler.load_state_dict`.
    """

    severity = "error"
    listens = (LOAD, SCALER, SCALE)
    message = "the state of {scaler} was loaded before this line, which throws it away."
    remedy = "make the scaler first, then load its state."
    bad = (
        SETUP
        + """\
checkpoint = {"scaler": scaler.state_dict()}
scaler.load_state_dict(checkpoint["scaler"])
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)  # <- HS118
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
checkpoint = {"scaler": scaler.state_dict()}
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
scaler.load_state_dict(checkpoint["scaler"])
for x, y in batches:
    scaler.scale(loss_of(x, y)).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
    )

    def __init__(self) -> None:
        self._loaded: dict[str, Event] = {}
        self._missed: dict[str, Event] = {}
        self._replaced: dict[str, tuple[Event, Event]] = {}

    def on_event(self, event: Event, ledger: Ledger) -> Iterator[Hit]:
        scaler = event.fact("variable") or event.scaler or ""
        if event.kind == LOAD and event.fact("missed"):
            self._missed[scaler] = event
            return
        if event.kind == LOAD:
            self._missed.pop(scaler, None)
            self._replaced.pop(scaler, None)
            self._loaded[scaler] = event
            return
        missed = self._missed.pop(scaler, None) if event.kind == SCALER else None
        if missed:
            text = "{scaler} is made after its state should have been loaded: nothing reaches it."
            loads = (missed, "passed over: there is no scaler yet")
            yield Hit(event, loads, message=text, scaler=scaler)
        load = self._loaded.pop(scaler, None)
        if event.kind == SCALER and load:
            self._replaced[scaler] = (event, load)
        elif event.kind == SCALE and scaler in self._replaced:
            made, load = self._replaced.pop(scaler)
            yield Hit(made, (load, "loaded"), scaler=scaler)
