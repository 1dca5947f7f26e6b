"""A forward after an update inside one autocast block: it uses the weights of before."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.rules.events import (
    AUTOCAST_EXIT,
    CACHE_CLEARED,
    FORWARD,
    STEP,
    WEIGHTS,
    Event,
)
from halfstep.rules.examples import SETUP
from halfstep.rules.ledger import Ledger
from halfstep.rules.rule import Hit, OrderRule


class StaleCasts(OrderRule):
    """A forward after an update inside one autocast block: it uses the weights of before.

    What: autocast is entered once around the whole loop. Why: autocast keeps the low-precision
    copies of the weights until its outermost block ends, so that every later forward sees the
    weights of the first; the loss never falls, without a message. Source: torch,
    ``torch/amp/autocast_mode.py``, `clear_autocast_cache` on exit; Flow-Factory pull request 186.
    """

    severity = "error"
    listens = (FORWARD, STEP, WEIGHTS, CACHE_CLEARED, AUTOCAST_EXIT)
    message = (
        "the model runs again after an update inside this autocast block: it still sees the casts"
        " of the old weights."
    )
    remedy = "enter autocast around each forward and its loss, not around the loop."
    bad = (
        SETUP
        + """\
with torch.autocast("cpu", dtype=torch.float16):  # <- HS115
    for x, y in batches:
        loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""
    )
    good = (
        SETUP
        + """\
for x, y in batches:
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
    )

    def __init__(self) -> None:
        self._cast: set[str] = set()
        self._updated: dict[str, Event] = {}

    def on_event(self, event: Event, ledger: Ledger) -> Iterator[Hit]:
        if not ledger.autocast:
            return
        if event.kind == FORWARD:
            yield from self._forward(event, ledger)
        elif event.kind == STEP:
            self._updated.update({o: event for o in event.optimizers if o in self._cast})
        elif event.kind == WEIGHTS:
            self._updated.update({m: event for m in event.fact("of") or () if m in self._cast})
        elif event.kind == CACHE_CLEARED or len(ledger.autocast) == 1:
            self._cast, self._updated = set(), {}

    def _forward(self, event: Event, ledger: Ledger) -> Iterator[Hit]:
        inner = ledger.autocast[-1]
        if inner.fact("enabled") is False or inner.fact("cache_enabled") is False:
            return
        whose = (*event.optimizers, *(event.fact("of") or ()))
        for one in whose:
            update = self._updated.get(one)
            if update and update.kind == STEP:
                related = ((update, "update"), (event, "forward with the old casts"))
                yield Hit(ledger.autocast[0], *related)
            elif update:
                text = (
                    "the model runs again after its weights were changed inside this autocast"
                    " block: it still sees the casts of the old weights."
                )
                related = ((update, "changed"), (event, "forward with the old casts"))
                yield Hit(ledger.autocast[0], *related, message=text)
        self._cast.update(whose)
