"""Assignments of the interpreter: what a name, an attribute or an item is from now on."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from halfstep.check.source.inventory import last_name
from halfstep.check.torch_models import gradients
from halfstep.check.values.kinds import Clipped, Const, Grad, Mapping, Params, Unknown, Value
from halfstep.check.values.objects import AVERAGE, Instance, Scope
from halfstep.rules import events as e

if TYPE_CHECKING:
    from halfstep.check.interpreter.machine import Machine


class Binding:
    """Assigns for a `Machine`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.weak = 0  # depth of branches that are run without a decision whether they are
        self.frame = 0  # `weak` where the running function was called
        self._since = 0  # number of the first object that was made in the outermost of these
        self.writes = 0  # how often something was changed that is seen outside of its function

    def enter_weak(self) -> None:
        """Go into a branch that may not run: what is set in it is not known for certain."""
        if not self.weak:
            self._since = Value().number
        self.weak += 1

    def _is_certain(self, target: ast.expr, scope: Scope) -> bool:
        """Whether a target is only seen where the branch has run."""
        if isinstance(target, ast.Name):
            return self.weak == self.frame and target.id not in scope.globals_
        if not self.weak or not isinstance(target, ast.Attribute):
            return not self.weak
        owner = scope.find(target.value.id) if isinstance(target.value, ast.Name) else None
        return isinstance(owner, Instance) and owner.number > self._since

    def augment(self, node: ast.AugAssign, scope: Scope) -> None:
        """``target op= value``."""
        if isinstance(node.target, ast.Attribute) and node.target.attr == "grad":
            owner = self._machine.expressions.evaluate(node.target.value, scope)
            if isinstance(owner, Params):
                value = self._machine.expressions.evaluate(node.value, scope)
                clips, divides = self._machine.clips, isinstance(node.op, ast.Div)
                if isinstance(node.op, (ast.Mult, ast.Div)) and clips.limits(divides, [value]):
                    clips.record(node, owner.of, [])
                    return
                how = gradients.of_operator(node.op, node.value, value)
                self._machine.emit(e.EDIT, node, facts={"how": how, "models": owner.of})
                return
        combined = ast.copy_location(ast.BinOp(node.target, node.op, node.value), node)
        self.bind(node.target, self._machine.expressions.evaluate(combined, scope), scope)

    def bind(self, target: ast.expr, value: Value, scope: Scope) -> None:
        """Assign `value` to a name, an attribute, an item or a tuple of these."""
        if isinstance(target, (ast.Tuple, ast.List)):
            for i, part in enumerate(target.elts):
                self.bind(part, self._machine.expressions.item(value, i), scope)
        elif isinstance(target, ast.Starred):
            self.bind(target.value, self._machine.unknown("*", value.models), scope)
        else:
            self._bind_one(target, value, scope)

    def _bind_one(self, target: ast.expr, value: Value, scope: Scope) -> None:
        if self.weak and isinstance(value, Const) and not self._is_certain(target, scope):
            value = self._machine.unknown()
        value = self._machine.expressions.named(value, target)
        if isinstance(target, ast.Name):
            self.writes += target.id in scope.globals_
            scope.set(target.id, value)
        elif isinstance(target, ast.Attribute):
            owner = self._machine.expressions.evaluate(target.value, scope)
            self.writes += 1
            if isinstance(owner, Instance):
                owner.attributes[target.attr] = value
                self._note_average(owner.cls.node.name, value)
            elif isinstance(owner, Mapping):
                owner.items[target.attr] = value
            elif target.attr == "grad" and isinstance(owner, Params) and isinstance(value, Clipped):
                self._machine.clips.record(target, owner.of, value.limits)
            elif target.attr == "grad" and isinstance(owner, Params):
                how = gradients.of_assignment(target, value)
                self._machine.emit(e.EDIT, target, facts={"how": how, "models": owner.of})
        elif isinstance(target, ast.Subscript):
            owner = self._machine.expressions.evaluate(target.value, scope)
            self.writes += not isinstance(owner, Unknown)
            if isinstance(owner, Mapping):
                key = self._machine.expressions.evaluate(target.slice, scope)
                owner.items[key.value if isinstance(key, Const) else "**"] = value
            elif isinstance(owner, Grad):
                how = gradients.of_assignment(target, value)
                self._machine.emit(e.EDIT, target, facts={"how": how, "models": owner.of})
        self._note_average(last_name(target) or "", value)

    def _note_average(self, name: str, value: Value) -> None:
        """By its name alone: there are as many classes for it as projects."""
        if isinstance(value, Unknown) and AVERAGE.search(name):
            self._machine.averages.add(value.root)
