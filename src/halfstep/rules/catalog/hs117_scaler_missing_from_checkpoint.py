"""A checkpoint with the state of the optimizer and without that of the scaler."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.rules.events import SAVE, SCALER, STEP, Event
from halfstep.rules.examples import SETUP
from halfstep.rules.ledger import Ledger
from halfstep.rules.rule import Edit, Hit, OrderRule


class ScalerMissingFromCheckpoint(OrderRule):
    """A checkpoint with the state of the optimizer and without that of the scaler.

    What: `optimizer.state_dict()` is saved, `scaler.state_dict()` never. Why: a resumed run starts
    again at `init_scale`, skips updates that the straight run made, and ends with other weights.
    Weights alone are no checkpoint to resume from, and are left alone. Source: torch, "Automatic
    Mixed Precision recipe", saving and resuming; transformers issue 34053.
    """

    severity = "warning"
    listens = (SAVE, STEP, SCALER)
    message = (
        "the optimizer's state is saved, the state of {scaler} never: a resumed run loses its"
        " scale and skips other updates."
    )
    remedy = 'save "scaler": {scaler}.state_dict() too, and load it on resume.'
    fixes = "unsafe"
    bad = (
        SETUP.replace("import torch\n", "import io\n\nimport torch\n", 1)
        + """\
for x, y in batches:
    scaler.scale(loss_of(x, y)).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
torch.save(state, io.BytesIO())  # <- HS117
"""
    )
    good = (
        SETUP.replace("import torch\n", "import io\n\nimport torch\n", 1)
        + """\
for x, y in batches:
    scaler.scale(loss_of(x, y)).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
state["scaler"] = scaler.state_dict()
torch.save(state, io.BytesIO())
"""
    )

    def __init__(self) -> None:
        self._made: dict[str, Event] = {}
        self._saves: list[Event] = []
        self._scaled: dict[str, Event] = {}
        self._complete = False

    def on_event(self, event: Event, ledger: Ledger) -> Iterator[Hit]:
        if event.kind == SCALER:
            self._made[event.scaler or ""] = event
            return iter(())
        if event.kind == STEP:
            self._scaled.update({o: event for o in event.optimizers if event.scaler})
            return iter(())
        holds = event.fact("holds") or ()
        self._complete |= bool({"scaler", "anything"} & set(holds))
        if "optimizer" in holds:
            self._saves.append(event)
        return iter(())

    def finish(self, ledger: Ledger) -> Iterator[Hit]:
        if self._complete:
            return
        for save in self._saves:
            steps = [
                s for o, s in self._scaled.items() if not save.optimizers or o in save.optimizers
            ]
            if steps:
                scaler = steps[0].scaler
                related = [(steps[0], "steps through the scaler")]
                where = save.fact("entry") if save.fact("apart") else save
                if where is not save:
                    related.insert(0, (save, "saved here"))
                others = {s.where: s for s in self._saves if s.where != save.where}
                related += [(other, "saved here too") for other in others.values()]
                if scaler in self._made:
                    related.append((self._made[scaler], "the scaler"))
                yield Hit(where, *related, edits=_edits(save, scaler), scaler=scaler)
                return


def _edits(save: Event, scaler: str | None) -> tuple[Edit, ...]:
    """One more entry after that of the optimizer, where a dict is written out."""
    entry = save.fact("entry")
    if entry is None:
        return ()
    after = entry._replace(line=entry.end_line, column=entry.end_column)
    return (Edit(after, f', "scaler": {scaler}.state_dict()'),)
