"""Expressions of the interpreter."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from halfstep.check.interpreter.operators import Operators
from halfstep.check.torch_models.gradients import Params
from halfstep.check.values.base import Const, External, Unknown, Value
from halfstep.check.values.containers import Mapping, Repeated, Sequence, entries
from halfstep.check.values.objects import Function, Scope
from halfstep.check.values.regions import some

if TYPE_CHECKING:
    from halfstep.check.interpreter.machine import Machine

_BUILTINS = frozenset(dir(builtins))
_OF_GRADIENTS = re.compile(r"\.grad\b")
_Comprehension = ast.ListComp | ast.GeneratorExp | ast.SetComp


class Expressions:
    """Evaluates expressions for a `Machine`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        operators = Operators(machine)
        self._kinds: dict[type[ast.expr], Callable[[Any, Scope], Value]] = {
            ast.Constant: lambda node, scope: Const(node.value),
            ast.Name: self._name,
            ast.Attribute: self._attribute,
            ast.Call: lambda node, scope: machine.calls.evaluate(node, scope),
            ast.BinOp: operators.binary,
            ast.BoolOp: machine.conditions.either,
            ast.UnaryOp: operators.unary,
            ast.Compare: machine.conditions.compare,
            ast.IfExp: operators.choice,
            ast.Tuple: self._sequence,
            ast.List: self._sequence,
            ast.Set: self._sequence,
            ast.Dict: self._dict,
            ast.Subscript: self._subscript,
            ast.Lambda: lambda node, scope: Function(node, scope),
            ast.ListComp: self._comprehension,
            ast.GeneratorExp: self._comprehension,
            ast.SetComp: self._comprehension,
            ast.NamedExpr: self._named,
            ast.JoinedStr: self._text,
            ast.Yield: lambda node, scope: machine.blocks.yielded(node, scope),
            ast.Starred: lambda node, scope: self.evaluate(node.value, scope),
            ast.Await: lambda node, scope: self.evaluate(node.value, scope),
        }

    def evaluate(self, node: ast.expr, scope: Scope) -> Value:
        """The value of `node`."""
        kind = self._kinds.get(type(node))
        return kind(node, scope) if kind else self._machine.unknown()

    def _name(self, node: ast.Name, scope: Scope) -> Value:
        value = scope.find(node.id)
        if value is None and node.id in _BUILTINS:
            return External(node.id)
        if value is None:
            value = self._machine.used_as(Unknown(("name", node.id), node.id))
            scope.outermost().names[node.id] = value
        return value

    def _attribute(self, node: ast.Attribute, scope: Scope) -> Value:
        return self.evaluate(node.value, scope).attribute(node.attr, self._machine)

    def _named(self, node: ast.NamedExpr, scope: Scope) -> Value:
        value = self.evaluate(node.value, scope)
        self._machine.bind(node.target, value, scope)
        return value

    def _text(self, node: ast.JoinedStr, scope: Scope) -> Value:
        """A text made of values: what one of them says, it says too."""
        parts = (part.value for part in node.values if isinstance(part, ast.FormattedValue))
        values = [self.evaluate(part, scope) for part in parts]
        return next((v for v in values if v.tells_of_skip), self._machine.unknown())

    # Containers

    def _sequence(self, node: ast.Tuple | ast.List | ast.Set, scope: Scope) -> Value:
        return Sequence([self.evaluate(item, scope) for item in node.elts])

    def _dict(self, node: ast.Dict, scope: Scope) -> Value:
        items: dict[Any, Value] = {}
        for key, item in zip(node.keys, node.values, strict=True):
            value = self.evaluate(item, scope)
            if key is None:
                items.update(entries(value))
                continue
            if isinstance(item, ast.Call):
                value.entered_at(self._machine.state.module.place(item))
            fresh = ("?", self._machine.fresh())
            items[key.value if isinstance(key, ast.Constant) else fresh] = value
        return Mapping(items)

    def _subscript(self, node: ast.Subscript, scope: Scope) -> Value:
        owner = self.evaluate(node.value, scope)
        return owner.item(self.evaluate(node.slice, scope), node, self._machine)

    def _comprehension(self, node: _Comprehension, scope: Scope) -> Value:
        inner, machine = Scope(scope.module, scope), self._machine
        first = node.generators[0]
        results = []
        over = self.evaluate(first.iter, inner)
        acts = machine.state.module.acts(node.elt) or over.question in machine.state.looped
        for item in over.iterate(2 if acts else 1, machine):  # as many as a loop has
            machine.bind(first.target, item, inner)
            if any(self.evaluate(test, inner).truth is False for test in first.ifs):
                continue
            for more in node.generators[1:]:
                inside = next(self.evaluate(more.iter, inner).iterate(1, machine), None)
                if inside is not None:
                    machine.bind(more.target, inside, inner)
            results.append(_picked(self.evaluate(node.elt, inner), node))
        if len(results) != 1:
            return Sequence(results)
        plain = isinstance(results[0], (Unknown, Const, Sequence))
        return Repeated(results[0]) if plain else results[0]


def _picked(value: Value, node: _Comprehension) -> Value:
    """Parameters of a comprehension: some of them, if it has a condition.

    All that have gradients are all.
    """
    conditions = [ast.unparse(test) for part in node.generators for test in part.ifs]
    conditions = [text for text in conditions if not _OF_GRADIENTS.search(text)]
    if not conditions or not isinstance(value, Params):
        return value
    return Params(some(value.of, " and ".join(conditions)))
