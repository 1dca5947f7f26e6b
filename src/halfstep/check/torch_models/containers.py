"""Methods of lists and dicts whose items are known."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from halfstep.check.interpreter.arguments import Call
from halfstep.check.source.inventory import last_name
from halfstep.check.values.kinds import Const, Mapping, Optimizer, Params, Scaler, Sequence, Value
from halfstep.check.values.regions import some

if TYPE_CHECKING:
    from halfstep.check.interpreter.machine import Machine

MAX_ITEMS = 16
_OF_GRADIENTS = re.compile(r"\.grad\b")
_Comprehension = ast.ListComp | ast.GeneratorExp | ast.SetComp


def picked(value: Value, node: _Comprehension) -> Value:
    """Parameters of a comprehension: some of them, if it has a condition.

    All that have gradients are all.
    """
    conditions = [ast.unparse(test) for part in node.generators for test in part.ifs]
    conditions = [text for text in conditions if not _OF_GRADIENTS.search(text)]
    if not conditions or not isinstance(value, Params):
        return value
    return Params(some(value.of, " and ".join(conditions)))


class Containers:
    """Evaluates methods of lists and dicts for a `Machine`; ``None`` means: nobody knows."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def of_sequence(self, owner: Sequence, method: str, call: Call) -> Value | None:
        """``items.append(x)`` and its like."""
        values = call.given()
        if method in ("append", "add") and len(values) == 1:
            self._append(owner, values[0], call)
        elif method == "insert" and len(values) == 2:
            self._append(owner, values[1], call)
        elif method in ("extend", "update") and len(values) == 1:
            given = values[0]
            for item in given.items if isinstance(given, Sequence) else [given]:
                self._append(owner, item, call)
        elif method == "clear":
            owner.items.clear()
        elif method == "copy":
            return Sequence(list(owner.items))
        elif method in ("pop", "popleft") and owner.items:
            return owner.items[0 if method == "popleft" else -1]
        return self._machine.unknown(models=owner.models)

    def _append(self, owner: Sequence, value: Value, call: Call) -> None:
        if len(owner.items) >= MAX_ITEMS:
            return
        if isinstance(value, (Optimizer, Scaler)):  # the variable that held it is used again
            assert isinstance(call.node.func, ast.Attribute)
            name = last_name(call.node.func.value) or "list"
            self._machine.names.pop(value.id, None)
            self._machine.give_name(value.id, f"{name}[{len(owner.items)}]")
        if isinstance(value, Params) and self._machine.chosen:
            value = Params(some(value.of, f"in {ast.unparse(call.node.func)}"))
        owner.items.append(value)
        self._machine.binding.writes += 1

    def of_mapping(self, owner: Mapping, method: str, call: Call) -> Value | None:
        """``items.get(key)`` and its like."""
        values = call.given()
        if method in ("get", "pop", "setdefault") and values:
            key = values[0].value if isinstance(values[0], Const) else None
            if key in owner.items:
                return owner.items[key]
            return values[1] if len(values) > 1 else self._machine.unknown(str(key))
        if method == "update":
            self._machine.binding.writes += 1
            for value in values:
                owner.items.update(value.items if isinstance(value, Mapping) else {"**": value})
            owner.items.update(call.named())
        elif method == "items":
            return Sequence([Sequence([Const(k), v]) for k, v in owner.items.items()])
        elif method == "values":
            return Sequence(list(owner.items.values()))
        elif method == "keys":
            return Sequence([Const(key) for key in owner.items])
        elif method == "copy":
            return Mapping(dict(owner.items))
        return self._machine.unknown()
