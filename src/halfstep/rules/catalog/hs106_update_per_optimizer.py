"""One `update` of a shared scaler after the step of every optimizer."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.rules.events import BACKWARD, STEP, UPDATE, Event, Place
from halfstep.rules.examples import SETUP
from halfstep.rules.ledger import Ledger
from halfstep.rules.rule import Hit, OrderRule

_MAX_OPTIMIZERS = 4


class UpdatePerOptimizer(OrderRule):
    """One `update` of a shared scaler after the step of every optimizer.

    What: two optimizers take turns, and the scaler that both use is updated after each of them.
    Why: every update counts towards `growth_interval`, so that the scale grows twice as often as
    it was set to and overflows twice as often; the weights themselves come out right. Source:
    torch, "Automatic Mixed Precision examples", multiple optimizers; accelerate issue 439.
    """

    severity = "warning"
    message = (
        "{scaler} is updated once per optimizer: its growth counter runs {times} times too fast."
    )
    remedy = "call {scaler}.update() once, after the last step, or give each optimizer a scaler."
    listens = (STEP, UPDATE, BACKWARD)
    bad = (
        SETUP
        + """\
bias = nn.Parameter(torch.zeros(1))
second = torch.optim.SGD([bias], lr=0.01)
for x, y in batches:
    scaler.scale(loss_of(x, y)).backward()
    scaler.step(optimizer)
    scaler.update()  # <- HS106
    optimizer.zero_grad()
    scaler.scale((bias - y).square().mean()).backward()
    scaler.step(second)
    scaler.update()
    second.zero_grad()
"""
    )
    good = (
        SETUP
        + """\
bias = nn.Parameter(torch.zeros(1))
second = torch.optim.SGD([bias], lr=0.01)
for x, y in batches:
    scaler.scale(loss_of(x, y)).backward()
    scaler.step(optimizer)
    optimizer.zero_grad()
    scaler.scale((bias - y).square().mean()).backward()
    scaler.step(second)
    second.zero_grad()
    scaler.update()
"""
    )

    def __init__(self) -> None:
        self._said: set[str] = set()
        self._backward: Event | None = None
        self._last: dict[str, Place] = {}  # optimizer to the backward of its last step
        self._stepped: dict[str, set[str]] = {}
        self._turns: dict[str, list[tuple[frozenset[str], Event]]] = {}

    def on_event(self, event: Event, ledger: Ledger) -> Iterator[Hit]:
        if event.kind == BACKWARD:
            self._backward = event
            return
        scaler = event.scaler
        if not scaler or scaler in self._said:
            return
        if event.kind == STEP:
            self._step(event, scaler, ledger)
        else:
            yield from self._update(event, scaler)

    def _step(self, event: Event, scaler: str, ledger: Ledger) -> None:
        epoch = ledger.scale(scaler).epoch
        for optimizer in event.optimizers:
            window = ledger.window(optimizer)
            used = window.waiting() if window.known else []
            if any(part.scaler == scaler and part.epoch < epoch for part in used):
                self._said.add(scaler)  # HS104 speaks of it
            backward = used[-1].event if used else self._backward
            if backward is None:
                continue
            # a backward that steps several optimizers in turn is one window of each
            others = (who for who, place in self._last.items() if place == backward.where)
            if any(other != optimizer for other in others):
                self._said.add(scaler)
            self._last[optimizer] = backward.where
            self._stepped.setdefault(scaler, set()).add(optimizer)

    def _update(self, event: Event, scaler: str) -> Iterator[Hit]:
        turns = self._turns.setdefault(scaler, [])
        turns.append((frozenset(self._stepped.pop(scaler, ())), event))
        del turns[: -2 * _MAX_OPTIMIZERS]
        period = _period([who for who, _ in turns])
        if period > 1:
            self._said.add(scaler)
        for _, update in turns[-2 * period : -period - 1]:
            other = turns[-period - 1][1]
            yield Hit(update, (other, "updated again"), scaler=scaler, times=period)


def _period(turns: list[frozenset[str]]) -> int:
    """After how many updates the turns of different optimizers repeat; 1 if they do not."""
    for period in range(2, len(turns) // 2 + 1):
        once = turns[-period:]
        apart = all(once) and sum(map(len, once)) == len(frozenset().union(*once))
        if apart and once == turns[-2 * period : -period]:
            return period
    return 1
