"""Operators of the interpreter: arithmetic, negation, and the choice between two values."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from halfstep.check.interpreter.knowledge import denied
from halfstep.check.source.shapes import divides_by_parts, window_begin
from halfstep.check.torch_models.gradients import Params
from halfstep.check.torch_models.scales import SkipTest
from halfstep.check.torch_models.table import by_operands
from halfstep.check.values.base import Const, Unknown, Value
from halfstep.check.values.containers import Sequence
from halfstep.check.values.numbers import Counter, Modulo, Sum, added, is_whole
from halfstep.check.values.objects import Scope

if TYPE_CHECKING:
    from halfstep.check.interpreter.machine import Machine

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
}


class Operators:
    """Evaluates operators for a `Machine`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._evaluate = machine.evaluate
        self._conditions = machine.conditions
        self._combined: dict[Hashable, Hashable] = {}

    def binary(self, node: ast.BinOp, scope: Scope) -> Value:
        """``left + right`` and its kin."""
        counted = window_begin(node)
        if counted is not None and isinstance(i := self._evaluate(counted, scope), Counter):
            return Counter(i.value - i.value % 2, i.loop, i.shift - i.value % 2)
        left, right = self._evaluate(node.left, scope), self._evaluate(node.right, scope)
        if isinstance(node.op, ast.Mod) and (isinstance(left, Sum) or is_whole(left)):
            return Modulo(left, right)
        if isinstance(left, Const) and isinstance(right, Const):
            return self._folded(node.op, left, right)
        for side in (left, right):
            if isinstance(node.op, ast.BitAnd) and isinstance(side, Const) and side.value is False:
                return side
        made = by_operands(node.op, left, right, self._machine)
        if made is not None:
            return made
        if isinstance(node.op, ast.Add) and isinstance(left, (Sequence, Params)):
            return Sequence([left, right])
        pair = (type(node.op), left.key, right.key)
        if pair not in self._combined:  # the same operation on the same values is the same
            self._combined[pair] = ("new", self._machine.fresh())
        key = self._combined[pair]
        known = added(node.op, left, right, key)
        made = Unknown(key, "", left.models | right.models)
        if isinstance(node.op, ast.Div) and left.models and divides_by_parts(node):
            made.divided = self._machine.state.module.place(node)
        return known or made.made_by(type(node.op).__name__, [left, right])

    def _folded(self, op: ast.operator, left: Const, right: Const) -> Value:
        try:
            value = _ARITHMETIC[type(op)](left.value, right.value)
        except (KeyError, TypeError, ValueError, ArithmeticError):
            return self._machine.unknown()
        if isinstance(left, Counter) and isinstance(op, (ast.Add, ast.Sub)) and type(value) is int:
            return Counter(value, left.loop, left.shift + value - left.value)
        if isinstance(right, Counter) and isinstance(op, ast.Add) and type(value) is int:
            return Counter(value, right.loop, right.shift + value - right.value)
        return Const(value)

    def unary(self, node: ast.UnaryOp, scope: Scope) -> Value:
        """``not operand``, ``-operand``."""
        value = self._evaluate(node.operand, scope)
        if isinstance(node.op, ast.Not):
            value = self._conditions.plain(value)
            if isinstance(value, SkipTest):
                return value.negated()
            truth = value.truth
            return Const(not truth) if truth is not None else Unknown(denied(value.question))
        if isinstance(node.op, ast.USub) and isinstance(value, Const):
            return self._folded(ast.Sub(), Const(0), value)
        return value

    def choice(self, node: ast.IfExp, scope: Scope) -> Value:
        """``body if test else orelse``."""
        state, module = self._machine.state, self._machine.state.module
        constant = any(isinstance(n, ast.Constant) for n in (node.body, node.orelse))
        if not (constant or module.relevant(node.body) or module.relevant(node.orelse)):
            return self._evaluate(node.body, scope)
        choices = state.num_choices
        acts = module.acts(node.body) or module.acts(node.orelse)
        chosen = node.body if self._conditions.holds(node.test, scope, True, acts) else node.orelse
        chose = state.num_choices > choices
        with state.entered_branch(chosen=chose):
            value = self._evaluate(chosen, scope)
        if chose and isinstance(value, Unknown) and value.name == "no_sync":
            return self._machine.unknown()
        return value
