"""A step with nothing to step on."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.rules.events import STEP, Event, Place, is_deeper
from halfstep.rules.examples import SETUP
from halfstep.rules.ledger import STEPPED, UNSCALED, Ledger, Window
from halfstep.rules.rule import Hit, OrderRule


class GradientsClearedBeforeStep(OrderRule):
    """A step with nothing to step on.

    What: `zero_grad` between the backward and the step, or no backward at all. Why: after
    `unscale_` there is no message and the weights never move; before it torch raises "No inf
    checks were recorded for this optimizer". A warning where another step of the optimizer does
    find gradients. Source: ``torch/amp/grad_scaler.py``, `step`.
    """

    severity = "error"
    listens = (STEP,)
    message = (
        "the gradients are cleared before the step that should use them: the weights never move."
    )
    remedy = "clear after the step, or before the first backward of the window."
    bad = (
        SETUP
        + """\
for x, y in batches:
    scaler.scale(loss_of(x, y)).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.zero_grad()  # <- HS126
    scaler.step(optimizer)
    scaler.update()
"""
    )
    good = (
        SETUP
        + """\
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""
    )

    def __init__(self) -> None:
        self._moves: set[str] = set()  # optimizers that have stepped with gradients
        self._idle: dict[Place, tuple[str, Event, Event]] = {}

    def on_event(self, event: Event, ledger: Ledger) -> Iterator[Hit]:
        for optimizer in event.optimizers:
            window = ledger.window(optimizer)
            if not window.known or window.waiting():
                self._moves.add(optimizer)
                self.refutes.add(("moves", optimizer, bool(event.scaler)))
            elif event.scaler and not window.parts and not event.fact("closure"):
                yield from self._step_on_nothing(event, window, ledger)

    def _step_on_nothing(self, event: Event, window: Window, ledger: Ledger) -> Iterator[Hit]:
        scale = ledger.scale(event.scaler or "")
        if scale.stage(window.optimizer) == STEPPED:  # HS107 speaks of it
            return
        if window.dropped and window.cleared:
            if window.cleared.fact("choice"):  # a window may be left out so, if others are not
                related = ((window.dropped[-1].event, "backward"), (event, "step"))
                hit = Hit(window.cleared, *related)
                hit.unless = ("moves", window.optimizer, True)
                hit.avoidable = is_deeper(window.cleared, event)
                yield hit
                return
            place = window.cleared.where
            again = place in self._idle and self._idle[place][-1].where == event.where
            self._idle[place] = window.optimizer, window.dropped[-1].event, event
            if again:
                yield self._hit(place)
            return
        if scale.born and scale.known and scale.used is None and not ledger.opaque:
            text = "nothing was scaled before this line; torch raises here."
            yield Hit(event, message=text)
            return
        checked = scale.stage(window.optimizer) == UNSCALED and window.optimizer not in scale.idle
        if window.born and scale.born and not ledger.opaque and not checked:
            yield Hit(event, message="there are no gradients here: no backward comes before.")

    def finish(self, ledger: Ledger) -> Iterator[Hit]:
        return map(self._hit, self._idle)

    def _hit(self, place: Place) -> Hit:
        optimizer, backward, step = self._idle[place]
        related = ((backward, "backward"), (step, "step"))
        if optimizer not in self._moves:
            return Hit(place, *related)
        text = "the gradients are cleared before the step that should use them: it moves nothing."
        return Hit(place, *related, severity="warning", message=text)
