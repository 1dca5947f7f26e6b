"""One clip over gradients of which some carry the scale and some do not."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.rules.events import CLIP, Event
from halfstep.rules.examples import SETUP
from halfstep.rules.ledger import Ledger
from halfstep.rules.rule import Hit, OrderRule


class ClipMixesScaledAndUnscaled(OrderRule):
    """One clip over gradients of which some carry the scale and some do not.

    What: two optimizers, one of them unscaled, and a norm over the parameters of both. Why: the
    scaled half is S times too large, decides the norm alone, and the other half becomes zero.
    Source: accelerate issues 174 and 439.
    """

    severity = "error"
    listens = (CLIP,)
    message = (
        "some of these gradients carry the loss scale and some do not: the norm means nothing."
    )
    remedy = "call {scaler}.unscale_() for every optimizer first, or clip each on its own."
    bad = (
        SETUP
        + """\
second = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.01)
both = [*model.parameters(), *second.param_groups[0]["params"]]
for x, y in batches:
    scaler.scale(loss_of(x, y) + both[-1].square().sum()).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(both, 1.0)  # <- HS120
    scaler.step(optimizer)
    scaler.step(second)
    scaler.update()
    optimizer.zero_grad()
    second.zero_grad()
"""
    )
    good = (
        SETUP
        + """\
second = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.01)
both = [*model.parameters(), *second.param_groups[0]["params"]]
for x, y in batches:
    scaler.scale(loss_of(x, y) + both[-1].square().sum()).backward()
    scaler.unscale_(optimizer)
    scaler.unscale_(second)
    nn.utils.clip_grad_norm_(both, 1.0)
    scaler.step(optimizer)
    scaler.step(second)
    scaler.update()
    optimizer.zero_grad()
    second.zero_grad()
"""
    )

    def on_event(self, event: Event, ledger: Ledger) -> Iterator[Hit]:
        windows = list(ledger.windows(event))
        scaled = [part for window in windows for part in window.scaled()]
        clean = [w.unscaled() for w in windows if w.unscaled() and not w.scaled()]
        if scaled and clean:
            backward, unscale = scaled[-1].event, clean[-1][-1].unscaled
            related = ((backward, "scaled backward"), (unscale, "one optimizer is unscaled"))
            yield Hit(event, *related, scaler=backward.scaler)
