"""A line of the stock loop that was left beside halfstep's engine."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.rules.events import (
    BACKWARD,
    CLIP,
    ENGINE,
    ENGINE_BACKWARD,
    ENGINE_CLOSED,
    ENGINE_DROP,
    ENGINE_OPEN,
    ENGINE_STEP,
    SCALE,
    SCHEDULE,
    STEP,
    UNSCALE,
    UPDATE,
    ZERO_GRAD,
    Event,
    Place,
)
from halfstep.rules.ledger import Ledger
from halfstep.rules.rule import Hit, OrderRule

_SETUP = """\
import torch
from torch import nn

import halfstep as hs

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
engine = hs.Engine(model, optimizer, precision="fp16"{settings})
batches = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(4)]
for x, y in batches:
    with engine.autocast():
        loss = nn.functional.mse_loss(model(x), y)
    engine.backward(loss)
{clip}    engine.step()
"""
_CLIP = "    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # <- HS134\n"
_TEXTS = {
    CLIP: (
        "the engine's gradients carry the loss scale here: this clips them to limit / scale.",
        "give the limit to the engine, `Engine(..., max_norm=...)`, or clip in `with"
        " engine.gradients():`.",
    ),
    ENGINE_STEP: (
        "the engine has stepped and cleared the gradients: there is nothing to clip here.",
        "give the limit to the engine, `Engine(..., max_norm=...)`.",
    ),
    STEP: (
        "the engine steps this optimizer itself: this applies gradients that carry the loss scale.",
        "leave this line out.",
    ),
    SCHEDULE: (
        "the engine moves this schedule after each update: here it moves a second time.",
        "leave this line out, or the `schedule=` of the engine.",
    ),
    ZERO_GRAD: (
        "this clears what the engine's window has so far; its step then divides by what is gone.",
        "leave this line out: the engine clears the gradients after each step.",
    ),
    UNSCALE: (
        "the engine scales by itself: a scaler beside it divides its gradients by a second scale.",
        "leave the scaler out.",
    ),
    SCALE: (
        "the engine scales the loss itself: this loss is scaled twice.",
        "give the loss itself to the engine and leave the scaler out.",
    ),
    ENGINE_BACKWARD: (
        "the engine takes the mean over its window itself: this divides the loss twice.",
        "give the loss as it is to the engine.",
    ),
}


class LineBesideEngine(OrderRule):
    """A line of the stock loop that was left beside halfstep's engine.

    What: a clip, a step, a schedule, a scaler, a division by the number of micro-batches or a
    `zero_grad` inside of a window, where `halfstep.Engine` does all of these. Why: the gradients
    carry the loss scale until the engine's step, and what the engine does is done twice. Source:
    the engine's documentation, "From a stock loop".
    """

    severity = "error"
    readers = "L"
    fixes = "unsafe"
    listens = (
        *(CLIP, STEP, SCHEDULE, ZERO_GRAD, UNSCALE, SCALE, UPDATE, BACKWARD),
        *(ENGINE, ENGINE_BACKWARD, ENGINE_STEP, ENGINE_DROP, ENGINE_OPEN, ENGINE_CLOSED),
    )
    message = "halfstep's engine does this itself, and here it is done a second time."
    remedy = "leave this line out, or give what it does to the engine."
    bad = _SETUP.format(settings="", clip=_CLIP)
    good = _SETUP.format(settings=", max_norm=1.0", clip="")

    def __init__(self) -> None:
        self._owner: dict[str, Event] = {}  # optimizer to the engine that steps it
        self._schedules: dict[str, Event] = {}
        self._windows: dict[str, list[Event]] = {}  # engine to the backward passes of its window
        self._scalers: set[str] = set()  # that were used beside an engine
        self._is_open = False  # in `engine.gradients()`
        self._is_stock = False  # a backward of the stock loop came after the engine's

    def on_event(self, event: Event, ledger: Ledger) -> Iterator[Hit]:
        if event.kind in (ENGINE, ENGINE_BACKWARD, ENGINE_STEP, ENGINE_DROP):
            yield from self._of_engine(event, event.model or "")
        elif event.kind in (ENGINE_OPEN, ENGINE_CLOSED):
            self._is_open = event.kind == ENGINE_OPEN
        elif event.kind == BACKWARD:
            self._is_stock = True
        else:
            yield from self._beside(event)

    def _of_engine(self, event: Event, engine: str) -> Iterator[Hit]:
        self._owner.update({o: event for o in event.optimizers if o not in self._owner})
        for schedule in event.fact("schedules") or ():
            self._schedules.setdefault(schedule, event)
        if event.kind == ENGINE_BACKWARD:
            self._is_stock = False
            self._windows.setdefault(engine, []).append(event)
            if event.fact("scaled"):
                yield self._hit(event, SCALE, None)
        elif event.kind != ENGINE:
            window = self._windows.pop(engine, [])
            if event.kind == ENGINE_STEP:
                yield from self._divided(window)

    def _divided(self, window: list[Event]) -> Iterator[Hit]:
        """Micro-batches of one window, each divided by the same number."""
        places = [e.fact("divided") for e in window if e.fact("divided") is not None]
        if len(places) > 1 and len(set(places)) == 1:
            yield self._hit(places[0], ENGINE_BACKWARD, None)

    def _beside(self, event: Event) -> Iterator[Hit]:
        if event.kind == SCHEDULE:
            if event.model in self._schedules:
                yield self._hit(event, SCHEDULE, self._schedules[event.model])
            return
        owners = [self._owner[o] for o in event.optimizers if o in self._owner]
        waiting = [window for window in self._windows.values() if window]
        if event.kind in (SCALE, UPDATE):
            in_loss = waiting and waiting[-1][-1].fact("in_loss")
            if (event.kind == SCALE and in_loss) or (event.scaler or "") in self._scalers:
                yield self._hit(event, SCALE if event.kind == SCALE else UNSCALE, None)
            return
        if not owners and (self._owner or self._is_stock or not waiting):
            return
        if event.kind == ZERO_GRAD and not waiting:
            return
        if event.kind == CLIP and self._is_open:
            return
        if event.scaler and event.kind in (STEP, UNSCALE):
            self._scalers.add(event.scaler)
        kind = UNSCALE if event.kind == STEP and event.scaler else event.kind
        if kind == CLIP and not waiting:
            kind = ENGINE_STEP
        yield self._hit(event, kind, owners[0] if owners else None)

    def _hit(self, where: Event | Place, kind: str, engine: Event | None) -> Hit:
        text, remedy = _TEXTS[kind]
        return Hit(where, (engine, "the engine"), message=text, remedy=remedy)
