"""Work on the gradients after the step that used them."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.rules.events import BACKWARD, CLIP, STEP, UNSCALE, UPDATE, ZERO_GRAD, Event
from halfstep.rules.examples import SETUP
from halfstep.rules.ledger import STEPPED, Ledger
from halfstep.rules.rule import Hit, OrderRule


class UnscaleOrClipAfterStep(OrderRule):
    """Work on the gradients after the step that used them.

    What: `unscale_` or a clip between `scaler.step` and `update` or the next backward. Why: torch
    raises on `unscale_`; a clip has no effect at all, training runs without it. Source:
    ``torch/amp/grad_scaler.py``; torchvision's classification reference of 2021.
    """

    severity = "error"
    listens = (UNSCALE, CLIP, STEP, BACKWARD, UPDATE, ZERO_GRAD)
    message = "unscale_ comes after the step of its window; torch raises here."
    remedy = "move it between the last backward and {scaler}.step(optimizer)."
    bad = (
        SETUP
        + """\
for x, y in batches:
    scaler.scale(loss_of(x, y)).backward()
    scaler.step(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # <- HS103
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
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
    )

    def __init__(self) -> None:
        self._late: list[Hit] = []  # until it is clear that no second step follows

    def on_event(self, event: Event, ledger: Ledger) -> Iterator[Hit]:
        if event.kind == UNSCALE:
            self._late += self._unscale(event, ledger)
        elif event.kind == CLIP:
            self._late += self._clip(event, ledger)
        else:
            yield from self._settle(event, ledger)

    def _settle(self, event: Event, ledger: Ledger) -> Iterator[Hit]:
        late, self._late = self._late, []
        unused = not any(window.waiting() for window in ledger.windows(event))
        if event.kind == STEP and event.scaler and unused:
            return  # the first step is the one too many; HS107 speaks of it
        yield from late

    def finish(self, ledger: Ledger) -> Iterator[Hit]:
        return iter(self._late)

    def _unscale(self, event: Event, ledger: Ledger) -> Iterator[Hit]:
        scale = ledger.scale(event.scaler or "")
        for optimizer in event.optimizers:
            window = ledger.window(optimizer)
            if scale.stage(optimizer) == STEPPED and window.known and not window.waiting():
                yield Hit(event, (scale.reached(optimizer), "step"), scaler=event.scaler)

    def _clip(self, event: Event, ledger: Ledger) -> Iterator[Hit]:
        if event.fact("max_norm") == float("inf"):
            return
        windows = [w for w in ledger.windows(event) if w.parts]
        spent = [part for window in windows for part in window.spent() if part.scaler]
        if spent and not any(window.waiting() for window in windows):
            yield Hit(
                event,
                (spent[-1].stepped, "step"),
                severity="warning",
                message="the step has used these gradients already: the clip has no effect.",
                scaler=spent[-1].scaler,
            )
