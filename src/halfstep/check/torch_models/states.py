"""States of training: what ``state_dict`` gives, and what of it goes into a file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from halfstep.check.torch_models.gradients import Params
from halfstep.check.torch_models.scales import ScaleRead
from halfstep.check.torch_models.table import watches
from halfstep.check.values.base import NOBODY, Const, External, Models, Unknown, Value
from halfstep.check.values.call import Call
from halfstep.check.values.containers import Mapping, Repeated, Sequence
from halfstep.check.values.objects import Instance
from halfstep.check.values.run import Run
from halfstep.rules import events as e
from halfstep.rules.events import Place


class State(Value):
    """What ``state_dict()`` gives: "model", "optimizer", "scaler" or "schedule", and of whom."""

    __slots__ = ("entry", "kind", "of", "owner")
    answers_methods = True

    def __init__(self, kind: str, owner: str = "", of: Models = NOBODY) -> None:
        self.kind = kind
        self.owner = owner
        self.of = of
        self.entry: Place | None = None  # where it stands in a dict that is written out

    def method(self, name: str, call: Call, run: Run) -> Value | None:
        call.evaluate_all()
        weights = Params(self.of)
        if self.of and name == "items":
            return Repeated(Sequence([run.unknown(), weights]))
        return weights if self.of and name in ("values", "get") else run.unknown()

    def holds_weights(self, run: Run) -> bool:
        return self.kind == "model"

    def entered_at(self, place: Place) -> None:
        self.entry = place

    def item(self, index: Value, node: ast.Subscript, run: Run) -> Value:
        if self.kind == "scaler" and isinstance(index, Const) and index.value == "scale":
            run.emit(e.READ_SCALE, node, scaler=self.owner)
            return ScaleRead(self.owner)
        if self.of:
            return Params(self.of)
        return super().item(index, node, run)


@watches
def _save(function: External, call: Call, run: Run) -> None:
    """``torch.save``, ``save_checkpoint``: record what of a training is written."""
    if "save" not in function.last.lower() and not function.name.endswith("pickle.dump"):
        return
    states = [state for value in call.all() for state in _held(value)]
    kinds = {state.kind for state in states}
    if not kinds:
        return
    if run.saves_scaler():
        kinds.add("anything")  # another path or file does it
    optimizers = tuple(s.owner for s in states if s.kind == "optimizer" and s.owner)
    entries = [s.entry for s in states if s.kind == "optimizer" and s.entry]
    entry = entries[0] if entries else None
    facts: dict[str, Any] = {"holds": sorted(kinds), "entry": entry}
    if entry is not None and not _is_near(entry, run):
        facts["apart"] = True
    run.emit(e.SAVE, call.node, optimizers=optimizers, facts=facts)


def _is_near(entry: Place, run: Run) -> bool:
    """Whether an entry stands in the function that is running, or in the script itself."""
    functions = run.state.frame.functions
    if run.state.module.path != entry.path:
        return False
    if not functions:
        return True
    return functions[-1].lineno <= entry.line <= (functions[-1].end_lineno or 0)


def _held(value: Value, name: str = "") -> Iterator[State]:
    """The states in what is saved; `name` is the key it stands under."""
    if isinstance(value, State):
        yield value
    elif isinstance(value, Mapping):
        if "**" in value.items:  # a name that is known when it runs
            yield State("anything")
        for key, item in value.items.items():
            yield from _held(item, key if isinstance(key, str) else "")
    elif isinstance(value, Sequence):
        for item in value.items:
            yield from _held(item)
    elif isinstance(value, Instance):
        for key, item in value.attributes.items():
            yield from _held(item, key)
    elif isinstance(value, Unknown):
        if "scaler" in name.lower() or "scaler" in value.name.lower():
            yield State("scaler")
        elif name == "**":
            yield State("anything")
