"""Micro-batches of one window with means over different numbers of targets."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.rules.events import LOSS, STEP, Event, Place
from halfstep.rules.examples import SETUP
from halfstep.rules.ledger import Ledger
from halfstep.rules.rule import Hit, OrderRule


class MeanOfMeans(OrderRule):
    """Micro-batches of one window with means over different numbers of targets.

    What: each micro-batch's loss is a mean over its valid targets, their numbers differ, and the
    window adds the means up. Why: a target in a short micro-batch weighs more than one in a long
    one; the gradient is not that of the whole batch. Source: transformers issue 34191; torchtune
    pull request 1875.
    """

    severity = "warning"
    readers = "G"
    listens = (LOSS, STEP)
    message = (
        "the micro-batches of this window average over {least} to {most} targets each: their mean"
        " is not the mean over the window."
    )
    remedy = "sum the loss and divide by the number of valid targets of the whole window."
    bad = (
        SETUP
        + """\
for x, y in batches:
    for part in (slice(0, 2), slice(2, 8)):
        loss = nn.functional.mse_loss(model(x[part]), y[part])  # <- HS123
        scaler.scale(loss / 2).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
    )
    good = (
        SETUP
        + """\
for x, y in batches:
    for part in (slice(0, 2), slice(2, 8)):
        loss = nn.functional.mse_loss(model(x[part]), y[part], reduction="sum")
        scaler.scale(loss / y.numel()).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
    )

    def __init__(self) -> None:
        self._counts: dict[Place, list[tuple[int, Event]]] = {}

    def on_event(self, event: Event, ledger: Ledger) -> Iterator[Hit]:
        if event.kind == LOSS:
            if event.fact("reduction") == "mean" and event.fact("count") is not None:
                self._counts.setdefault(event.where, []).append((event.fact("count"), event))
            return
        for losses in self._counts.values():
            counts = [count for count, _ in losses]
            if min(counts) != max(counts):
                yield Hit(losses[-1][1], (event, "step"), least=min(counts), most=max(counts))
        self._counts = {}
