"""A test for a skipped step that a growing or bounded scale makes wrong."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.rules.events import SCALER, SKIP_TEST, UPDATE, Event
from halfstep.rules.examples import SETUP
from halfstep.rules.ledger import Ledger
from halfstep.rules.rule import Hit, OrderRule

_EITHER_WAY = frozenset(["Eq", "NotEq", "not Eq", "not NotEq"])


class SkipTestByScale(OrderRule):
    """A test for a skipped step that a growing or bounded scale makes wrong.

    What: ``scaler.get_scale() != before`` as "it was skipped"; or ``<``, ``>=`` and their like
    where the scale has a floor, a hysteresis, or is set by hand. Why: the scale also changes when
    it grows, and a skip at the floor does not change it: a good step counts as skipped, or a
    skipped one as good. Source: torch, ``_amp_update_scale_``; halfstep's `GradScaler`.
    """

    severity = "warning"
    readers = "L"
    listens = (SCALER, UPDATE, SKIP_TEST)
    message = "the scale also changes when it grows: this takes a good step for a skipped one."
    remedy = (
        "test `{scaler}.get_scale() >= before`, or with halfstep's GradScaler"
        " `not scaler.last_outcome.skipped`."
    )
    bad = (
        SETUP
        + """\
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 30)
for x, y in batches:
    scaler.scale(loss_of(x, y)).backward()
    scaler.step(optimizer)
    before = scaler.get_scale()
    scaler.update()
    optimizer.zero_grad()
    skipped = scaler.get_scale() != before
    if not skipped:  # <- HS113
        scheduler.step()
"""
    )
    good = (
        SETUP
        + """\
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 30)
for x, y in batches:
    scaler.scale(loss_of(x, y)).backward()
    scaler.step(optimizer)
    before = scaler.get_scale()
    scaler.update()
    optimizer.zero_grad()
    skipped = scaler.get_scale() < before
    if not skipped:
        scheduler.step()
"""
    )

    def __init__(self) -> None:
        self._bounded: dict[str, tuple[Event, str]] = {}

    def on_event(self, event: Event, ledger: Ledger) -> Iterator[Hit]:
        scaler = event.scaler or ""
        if event.kind == SCALER:
            if event.fact("min_scale") or (event.fact("hysteresis") or 1) > 1:
                self._bounded[scaler] = (event, "has a floor or a hysteresis")
        elif event.kind == UPDATE:
            if event.fact("new_scale"):
                self._bounded[scaler] = (event, "set by hand")
        elif not event.fact("scales"):
            return
        elif event.fact("operator") in _EITHER_WAY:
            yield Hit(event, scaler=scaler)
        elif scaler in self._bounded:
            text = "a skip need not lower this scale: this takes a skipped step for a good one."
            yield Hit(event, self._bounded[scaler], message=text, scaler=scaler)
