"""Conditions of the interpreter: known, asked once per path, or a test for a skipped step."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from halfstep.check.interpreter.knowledge import among, compared, denied
from halfstep.check.source.inventory import last_name
from halfstep.check.source.shapes import flushes
from halfstep.check.torch_models.scales import ScaleRead, SkipTest
from halfstep.check.values.base import NOBODY, Const, External, Unknown, Value
from halfstep.check.values.containers import Mapping, Sequence
from halfstep.check.values.numbers import Modulo
from halfstep.check.values.objects import Scope
from halfstep.rules import events as e

if TYPE_CHECKING:
    from halfstep.check.interpreter.machine import Machine

_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.eq,
    ast.IsNot: operator.ne,
}
_FINITE = frozenset(["isfinite", "isinf", "isnan", "found_inf"])


class Conditions:
    """Evaluates conditions for a `Machine`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._seen: set[ast.expr] = set()

    def either(self, node: ast.BoolOp, scope: Scope) -> Value:
        """The value of ``and`` and ``or``."""
        stop = isinstance(node.op, ast.Or)
        seen: list[Value] = []
        for part in node.values:
            value = self.plain(self._machine.evaluate(part, scope))
            if isinstance(value, SkipTest):
                return value
            if value.truth is None and (last := self._flushes(node, part)) is not None:
                value = Const(last)
            if isinstance(value, Const) and value.value is stop:
                return value  # whatever came before it
            if value.truth is stop:
                return value if not seen else self._joined(node, [*seen, value])
            if value.truth is None:
                seen.append(value)
        return self._joined(node, seen) if seen else Const(not stop)

    def _joined(self, node: ast.BoolOp, parts: list[Value]) -> Value:
        if len(parts) == 1:
            return parts[0]
        models = NOBODY.union(*(p.models for p in parts))
        return Unknown((type(node.op).__name__, *(p.question for p in parts)), "", models)

    def compare(self, node: ast.Compare, scope: Scope) -> Value:
        """The value of a comparison."""
        sides = [self._machine.evaluate(side, scope) for side in (node.left, *node.comparators)]
        tests = [side for side in sides if isinstance(side, SkipTest)]
        if tests:  # whether it found anything
            return tests[0]
        reads = [side for side in sides if isinstance(side, ScaleRead)]
        if reads:
            name = type(node.ops[0]).__name__
            scales = len(reads) == len(sides) == 2
            return SkipTest(reads[0].scaler, name, self._machine.state.num_steps, scales)
        if len(sides) != 2:
            pairs = zip(node.ops, sides, sides[1:], strict=False)
            return self._all([self._compare_two(op, *pair) for op, *pair in pairs])
        for counted, limit in ((0, 1), (1, 0)):  # every window is read as two micro-batches
            written = (node.left, *node.comparators)[counted]
            if self._machine.loops.fills_window(written, sides[counted], sides[limit]):
                sides[limit] = Const(2)
        value = self._compare_two(node.ops[0], *sides)
        at_end = self._machine.loops.at_end(node, *sides)
        return value if at_end is None else Const(at_end)

    def _all(self, parts: list[Value]) -> Value:
        """Whether each of `parts` holds."""
        if any(part.truth is False for part in parts):
            return Const(False)
        return Unknown(("And", *(part.question for part in parts if part.truth is None)))

    def _compare_two(self, op: ast.cmpop, left: Value, right: Value) -> Value:
        known = self._machine.rounds.compared(op, left, right)
        if known is not None:
            return known
        if isinstance(op, (ast.In, ast.NotIn)):
            value = _contains(left, right)
            return value if isinstance(op, ast.In) else _negated(value)
        if isinstance(left, Const) and isinstance(right, Const):
            try:
                return Const(_COMPARISONS[type(op)](left.value, right.value))
            except (KeyError, TypeError):
                return Unknown((type(op).__name__, left.key, right.key))
        if isinstance(right, Const) and right.value is None:
            is_none = left.is_none(self._machine)
            if is_none is not None:
                return Const(is_none is isinstance(op, (ast.Is, ast.Eq)))
        question = compared(type(op).__name__, left.question, right.question)
        return Unknown(question)

    def matches(self, pattern: ast.pattern, subject: Value, scope: Scope) -> Value:
        """Whether a ``case`` takes `subject`."""
        if isinstance(pattern, ast.MatchAs) and pattern.pattern is None:
            return Const(True)
        if isinstance(pattern, ast.MatchAs) and pattern.pattern is not None:
            return self.matches(pattern.pattern, subject, scope)
        if isinstance(pattern, ast.MatchSingleton):
            return self._compare_two(ast.Is(), subject, Const(pattern.value))
        if isinstance(pattern, ast.MatchValue):
            wanted = self._machine.evaluate(pattern.value, scope)
            return self._compare_two(ast.Eq(), subject, wanted)
        if isinstance(pattern, ast.MatchOr):
            parts = [self.matches(part, subject, scope) for part in pattern.patterns]
            if any(part.truth for part in parts):
                return Const(True)
            return Unknown(("Or", *(part.question for part in parts if part.truth is None)))
        return Unknown(("case", subject.question, ast.dump(pattern)))

    def takes(self, case: ast.match_case, subject: Value, scope: Scope) -> bool:
        """Whether the path goes into a ``case``."""
        value = self.matches(case.pattern, subject, scope)
        truth = self._ask(value.question, True, True) if value.truth is None else value.truth
        return truth and (case.guard is None or self.holds(case.guard, scope))

    def plain(self, value: Value) -> Value:
        """`value` as a condition: a remainder holds where there is one."""
        if not isinstance(value, Modulo):
            return value
        return self._compare_two(ast.NotEq(), value, Const(0))

    def known(self, node: ast.expr, scope: Scope) -> bool | None:
        """Which way the path goes at `node`, if that is settled; it decides nothing."""
        value = self.plain(self._machine.evaluate(node, scope))
        return value.truth if value.truth is not None else self._machine.answer(value.question)

    def holds(self, node: ast.expr, scope: Scope, main: bool = True, acts: bool = True) -> bool:
        """Which way the path goes at `node`; `acts` says that something can happen in a branch."""
        module = self._machine.state.module
        if module.once("finite", node, lambda: _asks_finite(node)):
            self._machine.state.finite_known = True
        first = node not in self._seen
        self._seen.add(node)
        return self._decide(node, scope, main, acts and first)

    def _decide(self, node: ast.expr, scope: Scope, main: bool, acts: bool) -> bool:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return not self._decide(node.operand, scope, not main, acts)
        if isinstance(node, ast.BoolOp):

            def ask(part: ast.expr, main: bool, acts: bool) -> bool:
                return self._part(node, part, scope, main, acts)

            stop = isinstance(node.op, ast.Or)
            return self._machine.knowledge.joined(stop, node.values, main, ask, acts)
        value = self.plain(self._machine.evaluate(node, scope))
        if isinstance(value, SkipTest) and value.speaks_of_last_step(self._machine):
            self._machine.state.num_skip_tests += 1
            facts = {"operator": value.operator, "scales": value.scales}
            self._machine.emit(e.SKIP_TEST, node, scaler=value.scaler, facts=facts)
        if value.truth is not None:
            return value.truth
        return self._ask(value.question, main, acts)

    def _part(
        self, whole: ast.BoolOp, node: ast.expr, scope: Scope, main: bool, acts: bool
    ) -> bool:
        last = self._flushes(whole, node)
        if last is None:
            return self._decide(node, scope, main, acts)
        truth = self.plain(self._machine.evaluate(node, scope)).truth
        return last if truth is None else truth

    def _flushes(self, whole: ast.BoolOp, part: ast.expr) -> bool | None:
        """``(i + 1) % 4 == 0 or SOMETHING OF THE BATCH``: whether the last round is run.

        What is asked of a batch beside the count of batches is whether it is the last one.
        """
        module = self._machine.state.module
        if module.once("flush", part, lambda: flushes(whole, part)):
            return self._machine.loops.is_last(part)
        return None

    def _ask(self, question: Hashable, main: bool, acts: bool) -> bool:
        self._machine.state.num_choices += 1
        return self._machine.decide(question, main, acts)


def _contains(left: Value, right: Value) -> Value:
    """``left in right``."""
    texts = [v.value for v in (left, right) if type(v) is Const and isinstance(v.value, str)]
    if len(texts) == 2:
        return Const(texts[0] in texts[1])
    if isinstance(right, Mapping) and isinstance(left, Const) and "**" not in right.items:
        return Const(left.value in right.items)
    if isinstance(right, Sequence) and all(isinstance(v, (Const, External)) for v in right.items):
        if isinstance(left, Const) and not any(isinstance(v, External) for v in right.items):
            return Const(any(v.key == left.key for v in right.items))
        return Unknown(among(left.question, (v.key for v in right.items)))
    return Unknown(("In", left.question, right.question))


def _negated(value: Value) -> Value:
    truth = value.truth
    return Const(not truth) if truth is not None else Unknown(denied(value.question))


def _asks_finite(node: ast.expr) -> bool:
    return any(last_name(n) in _FINITE for n in ast.walk(node))
