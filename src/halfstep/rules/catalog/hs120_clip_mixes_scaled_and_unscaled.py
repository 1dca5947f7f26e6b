"""One clip over gradients of which some carry the scale and some do not."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.rules.events import CLIP, Event
from halfstep.rules.examples import SETUP
from halfstep.rules.ledger import Ledger, Window
from halfstep.rules.rule import Hit, OrderRule


class ClipMixesScaledAndUnscaled(OrderRule):
    """One clip over gradients of which some carry the scale and some do not.

    What: two optimizers, one of them unscaled, and a norm over the parameters of both. Why: the
    scaled half is S times too large, decides the norm alone, and the other half becomes zero. Or:
    a joint clip after another one. Why: the scaler looks at each optimizer alone, and a clip makes
    an overflow NaN; the second one spreads it to gradients that were found finite. Source:
    accelerate issues 174 and 439; torch, `clip_grad_norm_` multiplies by limit / norm.
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
        windows = [window for window in ledger.windows(event) if window.parts]
        scaled = [window for window in windows if window.scaled()]
        clean = [window for window in windows if window.unscaled() and not window.scaled()]
        if scaled and clean:
            backward, unscale = scaled[-1].scaled()[-1].event, clean[-1].unscaled()[-1].unscaled
            related = ((backward, "scaled backward"), (unscale, "one optimizer is unscaled"))
            yield Hit(event, *related, used_by=windows, scaler=backward.scaler)
            return
        for window in windows:
            clips = window.clips[window.parts[-1].num_clips :]
            others = [other for other in clean if other is not window]
            if clips and others:
                yield self._spreads(event, clips[-1], others)
                return

    def _spreads(self, event: Event, clip: Event, windows: list[Window]) -> Hit:
        text = (
            "gradients that overflowed are NaN since the first clip; this one makes those of the"
            " other optimizer NaN too, after {scaler} has found them finite."
        )
        scaler = windows[-1].unscaled()[-1].scaler
        return Hit(event, (clip, "first clip"), message=text, used_by=windows, scaler=scaler)
