"""`optimizer.step()` on gradients that belong to a scaler, or a second step on the same ones."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.rules.events import CLIP, STEP, UNSCALE, Event
from halfstep.rules.examples import SETUP
from halfstep.rules.ledger import STEPPED, Ledger
from halfstep.rules.rule import Hit, OrderRule


class OptimizerStepBypassesScaler(OrderRule):
    """`optimizer.step()` on gradients that belong to a scaler, or a second step on the same ones.

    What: the loss was scaled, the step does not go through that scaler, or the optimizer steps
    twice in a window. Why: without `unscale_` the update is S times too large; with it, a
    non-finite gradient is applied; a second step applies the same gradients again. Source: torch,
    "Automatic Mixed Precision examples"; torchvision's classification reference of 2021.
    """

    severity = "error"
    listens = (STEP, UNSCALE, CLIP)
    message = (
        "the gradients belong to {scaler}, and this step does not ask it whether they are finite."
    )
    remedy = "step with {scaler}.step({optimizer}), once per window."
    bad = (
        SETUP
        + """\
for x, y in batches:
    scaler.scale(loss_of(x, y)).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()  # <- HS107
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
        self._prepared: set[str] = set()  # optimizers unscaled or clipped since their last step

    def on_event(self, event: Event, ledger: Ledger) -> Iterator[Hit]:
        if event.kind != STEP:
            self._prepared.update(event.optimizers)
            return
        for optimizer in event.optimizers:
            window = ledger.window(optimizer)
            if not window.known:
                continue
            others = [p for p in window.waiting() if p.scaler and p.scaler != event.scaler]
            if others and not (event.fact("guarded") and not window.scaled()):
                own = any(p.scaler == event.scaler for p in window.waiting())
                yield self._bypass(event, others[-1].event, optimizer, bool(window.scaled()), own)
            elif not window.waiting():
                yield from self._again(event, optimizer, ledger)
            self._prepared.discard(optimizer)

    def _bypass(
        self, event: Event, backward: Event, optimizer: str, scaled: bool, own: bool
    ) -> Hit:
        times = f"the gradients still carry the scale of {backward.scaler}: the update is that much"
        text = f"{times} too large." if scaled else None
        remedy = "clear them in front of the backward of this step: {optimizer}.zero_grad()."
        return Hit(
            event,
            (backward, "scaled backward"),
            message=text,
            remedy=remedy if own else None,
            scaler=backward.scaler,
            optimizer=optimizer,
        )

    def _again(self, event: Event, optimizer: str, ledger: Ledger) -> Iterator[Hit]:
        window = ledger.window(optimizer)
        spent = [p for p in window.spent() if p.scaler]
        measured = bool(spent) and len(window.clips) > spent[-1].num_clips
        asked = event.fact("guarded") and measured
        again = spent[-1].stepped if spent and not asked else None
        if event.scaler and ledger.scale(event.scaler).stage(optimizer) == STEPPED:
            again = ledger.scale(event.scaler).reached(optimizer)
        scaler = (again.scaler if again else None) or event.scaler
        if again and event.scaler and optimizer in self._prepared:
            text = "this step comes too early: the gradients are prepared and stepped on below."
            yield Hit(
                *(again, (event, "second step")), message=text, scaler=scaler, optimizer=optimizer
            )
        elif again:
            text = "the optimizer has stepped on these gradients already."
            remedy = "step once per window: leave one of the two steps out."
            if again.scaler and not event.scaler:
                remedy = f"delete this line: {again.scaler}.step() has used the gradients."
            yield Hit(event, (again, "first step"), message=text, remedy=remedy)
