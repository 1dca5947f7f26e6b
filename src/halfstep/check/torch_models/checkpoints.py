"""Checkpoints: what of a training state goes into a file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from halfstep.check.interpreter.arguments import Call
from halfstep.check.values.kinds import Mapping, Sequence, State, Unknown, Value
from halfstep.check.values.objects import Instance
from halfstep.rules import events as e

if TYPE_CHECKING:
    from halfstep.check.interpreter.machine import Machine


def saves(name: str, last: str) -> bool:
    """Whether a function from outside writes a file: ``torch.save``, ``save_checkpoint``."""
    return "save" in last.lower() or name.endswith("pickle.dump")


def save(machine: Machine, call: Call) -> None:
    """Record what a call writes, if any of it is the state of a training."""
    states = [state for value in call.all() for state in held(value)]
    kinds = {state.kind for state in states}
    if not kinds:
        return
    assert machine.module is not None
    if machine.project.saves_scaler(machine.module):
        kinds.add("anything")  # another path or file does it
    optimizers = tuple(s.owner for s in states if s.kind == "optimizer" and s.owner)
    entries = [s.entry for s in states if s.kind == "optimizer" and s.entry]
    facts = {"holds": sorted(kinds), "entry": entries[0] if entries else None}
    machine.emit(e.SAVE, call.node, optimizers=optimizers, facts=facts)


def held(value: Value, name: str = "") -> Iterator[State]:
    """The states in what is saved; `name` is the key it stands under."""
    if isinstance(value, State):
        yield value
    elif isinstance(value, Mapping):
        if "**" in value.items:  # a name that is known when it runs
            yield State("anything")
        for key, item in value.items.items():
            yield from held(item, key if isinstance(key, str) else "")
    elif isinstance(value, Sequence):
        for item in value.items:
            yield from held(item)
    elif isinstance(value, Instance):
        for key, item in value.attributes.items():
            yield from held(item, key)
    elif isinstance(value, Unknown):
        if "scaler" in name.lower() or "scaler" in value.name.lower():
            yield State("scaler")
        elif name == "**":
            yield State("anything")
