"""A penalty made of gradients that still carry the loss scale."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.rules.events import SCALE, Event
from halfstep.rules.examples import SETUP
from halfstep.rules.ledger import Ledger
from halfstep.rules.rule import Hit, OrderRule

_LOOP = """\
for x, y in batches:
    x.requires_grad_()
    loss = loss_of(x, y)
    (g,) = torch.autograd.grad({loss}, x, create_graph=True)
    penalty = g.square().mean(){mark}
    scaler.scale(loss + penalty).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""


class PenaltyFromScaledGradients(OrderRule):
    """A penalty made of gradients that still carry the loss scale.

    What: `torch.autograd.grad` of a scaled loss, and a term of the next loss made of what it gives.
    Why: the gradients are S times too large, a squared norm S * S times: the penalty drowns the
    loss, and its weight changes with the scale. Source: torch, "Automatic Mixed Precision
    examples", gradient penalty.
    """

    severity = "error"
    readers = "L"
    listens = (SCALE,)
    message = "this is made of gradients that carry the loss scale, and the next loss of this."
    remedy = "divide them by {scaler}.get_scale() before the penalty is computed."
    bad = SETUP + _LOOP.format(loss="scaler.scale(loss)", mark="  # <- HS133")
    good = SETUP + _LOOP.format(loss="loss", mark="")

    def on_event(self, event: Event, ledger: Ledger) -> Iterator[Hit]:
        made = event.fact("carried")
        if made is not None:
            yield Hit(made, (event, "scaled again, with the penalty"), scaler=event.scaler)
