"""`backward` inside autocast."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.rules.events import AUTOCAST_EXIT, BACKWARD, FORWARD, STEP, Event
from halfstep.rules.examples import SETUP
from halfstep.rules.ledger import Ledger
from halfstep.rules.rule import Hit, OrderRule


class BackwardInAutocast(OrderRule):
    """`backward` inside autocast.

    What: the backward pass runs while autocast is on. Why: the ops of a backward pass run in the
    types of their forward anyway (with torch's own lists of ops the gradients were measured
    bit-equal), but hand-written backward passes, hooks and what a policy keeps in FP32 are cast
    again, which torch recommends against. Source: torch, `autocast`:
    "Backward passes under autocast are not recommended".
    """

    severity = "note"
    listens = (BACKWARD, FORWARD, STEP, AUTOCAST_EXIT)
    message = "backward runs under autocast; it needs none."
    remedy = "end the `with torch.autocast(...)` block after the loss."
    bad = (
        SETUP
        + """\
for x, y in batches:
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()  # <- HS114
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
        self._inside: list[Event] = []
        self._stepped = False
        self._stale = False  # HS115 speaks of the whole block then

    def on_event(self, event: Event, ledger: Ledger) -> Iterator[Hit]:
        if not ledger.autocast or ledger.autocast[-1].fact("enabled") is False:
            return
        if event.kind == BACKWARD:
            self._inside.append(event)
        elif event.kind == STEP:
            self._stepped = True
        elif event.kind == FORWARD:
            self._stale |= self._stepped and bool(event.optimizers)
        elif len(ledger.autocast) == 1:
            yield from self.finish(ledger)
            self._inside, self._stepped, self._stale = [], False, False

    def finish(self, ledger: Ledger) -> Iterator[Hit]:
        if not self._stale:
            yield from (Hit(backward) for backward in self._inside)
