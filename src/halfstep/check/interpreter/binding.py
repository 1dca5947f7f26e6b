"""Assignments of the interpreter: what a name, an attribute or an item is from now on."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from halfstep.check.source.inventory import last_name
from halfstep.check.torch_models.averages import Average
from halfstep.check.torch_models.optimizers import OWN, Optimizer, Schedule
from halfstep.check.torch_models.scalers import Scaler
from halfstep.check.values.base import Const, Unknown, Value
from halfstep.check.values.containers import Mapping, Sequence
from halfstep.check.values.objects import Instance, Scope, is_average_name

if TYPE_CHECKING:
    from halfstep.check.interpreter.machine import Machine


class Binding:
    """Assigns for a `Machine`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def augment(self, node: ast.AugAssign, scope: Scope) -> None:
        """``target op= value``."""
        if isinstance(node.target, ast.Attribute) and node.target.attr == "grad":
            owner = self._machine.evaluate(node.target.value, scope)
            value = self._machine.evaluate(node.value, scope)
            if owner.augment(node.target.attr, node, value, self._machine):
                return
        combined = ast.copy_location(ast.BinOp(node.target, node.op, node.value), node)
        self.bind(node.target, self._machine.evaluate(combined, scope), scope)

    def bind(self, target: ast.expr, value: Value, scope: Scope) -> None:
        """Assign `value` to a name, an attribute, an item or a tuple of these."""
        if isinstance(target, (ast.Tuple, ast.List)):
            for i, part in enumerate(target.elts):
                self.bind(part, value.unpacked(i, self._machine), scope)
        elif isinstance(target, ast.Starred):
            self.bind(target.value, self._machine.unknown("*", value.models), scope)
        else:
            self._bind_one(target, value, scope)

    def _bind_one(self, target: ast.expr, value: Value, scope: Scope) -> None:
        state = self._machine.state
        uncertain = state.frame.uncertain and not self._is_certain(target, scope)
        if uncertain and isinstance(value, Const):
            value = self._machine.unknown()
        value = self._named(value, target)
        if isinstance(target, ast.Name):
            state.num_writes += target.id in scope.globals_
            scope.set(target.id, value)
        elif isinstance(target, ast.Attribute):
            owner = self._machine.evaluate(target.value, scope)
            state.num_writes += 1
            owner.assign(target.attr, value, target, self._machine)
        elif isinstance(target, ast.Subscript):
            owner = self._machine.evaluate(target.value, scope)
            state.num_writes += not isinstance(owner, Unknown)
            index = self._machine.evaluate(target.slice, scope)
            owner.assign_item(index, value, target, self._machine)
        if isinstance(value, Unknown) and is_average_name(last_name(target) or ""):
            state.averages.add(value.root)  # there are as many classes for it as projects

    def _name_items(self, value: Value, target: ast.expr) -> None:
        """Names for scalers and optimizers, those in lists and dicts included."""
        if isinstance(value, (Unknown, Const)):
            return
        text = ast.unparse(target)
        items: dict[str, Value] = {text: value}
        if isinstance(value, Mapping):
            items = {f"{text}[{_written(key)}]": item for key, item in value.items.items()}
        elif isinstance(value, Sequence):
            items = {f"{text}[{i}]": item for i, item in enumerate(value.items)}
        for name, item in items.items():
            item = item.attributes.get(OWN, item) if isinstance(item, Instance) else item
            if isinstance(item, (Scaler, Optimizer, Schedule, Average)):
                self._machine.state.give_name(item.id, name)

    def _is_certain(self, target: ast.expr, scope: Scope) -> bool:
        """Whether a target is only seen where the branch has run."""
        frame = self._machine.state.frame
        if isinstance(target, ast.Name):
            local = frame.uncertain == frame.uncertain_at_call
            return local and target.id not in scope.globals_
        if not isinstance(target, ast.Attribute):
            return False
        owner = scope.find(target.value.id) if isinstance(target.value, ast.Name) else None
        return isinstance(owner, Instance) and owner.number > frame.uncertain_since

    def _named(self, value: Value, target: ast.expr) -> Value:
        """`value` as it is once it has a variable: its name, and what that is used as."""
        name = last_name(target)
        self._name_items(value, target)
        if name is None:
            return value
        if isinstance(value, Unknown) and value.name != name:
            fresh = value.under(name)
            used = self._machine.used_as(fresh)
            return used if used is not fresh or is_average_name(name) else value
        return value


def _written(key: object) -> str:
    """A key as most programs write it."""
    return f'"{key}"' if isinstance(key, str) and '"' not in key else repr(key)
