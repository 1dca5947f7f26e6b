"""What a program asks about the rounds of its loops, answered from those that are run.

A loop over a million batches is run two, four or five times. ``len(loader)``, ``num_batches - 1``
and their like are numbers all the same: as many as rounds are run, so that the last batch is the
last round, and a window is left over if and only if the loop has left one.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from halfstep.check.values.base import Const, Unknown, Value
from halfstep.check.values.containers import Sequence
from halfstep.check.values.numbers import Counted, Counter, Modulo, Sum

if TYPE_CHECKING:
    from halfstep.check.interpreter.loops import Loops
    from halfstep.check.values.numbers import Loop

# A variable that is compared with the number of a round and is the number of the last one.
_LENGTH = re.compile(
    r"(^|_)(n|nb|num|len|total|last|length)(_|$)|^(batches|steps|iters)$|per_epoch"
)
_LONG = 1 << 32  # a period that is not known
_ORDERS: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt,
    ast.Gt: ast.Lt,
    ast.LtE: ast.GtE,
    ast.GtE: ast.LtE,
}


class Lengths:
    """Numbers of rounds, by what they are the length of."""

    def __init__(self, loops: Loops) -> None:
        self._loops = loops
        self._known: dict[Hashable, tuple[Loop, int]] = {}
        self._same: dict[Hashable, list[Hashable]] = {}

    def note(self, loop: Loop, over: Value | None) -> None:
        """A loop begins to go through `over`."""
        while isinstance(over, Counted) and over.over is not None:
            over = over.over
        if isinstance(over, Counted) and isinstance(over.bound, Unknown):
            base, offset = _split(over.bound)
            self._known[base] = loop, loop.start - offset
        elif over is not None and not isinstance(over, Counted):
            for key in (over.key, *self._same.get(over.key, ())):
                self._known["len", key] = loop, 0

    def alias(self, whole: Value, parts: list[Value]) -> None:
        """`whole` is as long as each of `parts`."""
        self._same[whole.key] = [part.key for part in parts]

    def bind_condition(self, loop: Loop, test: ast.expr, left: Value, right: Value) -> None:
        """``while left < right``: the loop ends when it is so, after the rounds that are run."""
        assert isinstance(test, ast.Compare)
        start = self.number(left)
        if start is not None and isinstance(right, Unknown) and self.number(right) is None:
            base, offset = _split(right)
            self._known[base] = loop, start - offset - isinstance(test.ops[0], ast.LtE)

    def number(self, value: Value) -> int | None:
        """`value` as a number, if it is one or is known by the rounds of a loop."""
        if isinstance(value, Const):
            return value.value if type(value.value) is int else None
        if isinstance(value, Unknown):
            base, offset = _split(value)
            if base in self._known:
                loop, shift = self._known[base]
                return self._loops.total(loop) + shift + offset
            known = self._loops.constant(value)
            return known if not isinstance(value, Sum) else None
        return None

    def is_window(self, node: ast.expr) -> bool:
        """Whether `node` is a variable that counts the micro-batches of a window, or a list."""
        return self._loops.is_window(node)

    def compared(self, op: ast.cmpop, left: Value, right: Value) -> Value | None:
        """The value of a comparison, if it can be told from the rounds of a loop."""
        kind = type(op)
        if isinstance(op, (ast.In, ast.NotIn)):
            return self._among(op, left, right)
        if isinstance(right, (Counter, Modulo)) and not isinstance(left, (Counter, Modulo)):
            kind, left, right = _TURNED.get(kind, kind), right, left
        if isinstance(left, Modulo):
            return self._remainder(kind, left, right)
        if kind not in _ORDERS or (type(left) is Const and type(right) is Const):
            return None
        if isinstance(left, Counter) and isinstance(right, Unknown):
            self._guess(kind, left, right)
            if kind is ast.Gt and left.value == 0 and self.number(right) is None:
                return Const(False)  # the first round is beyond no setting
        one, other = self.number(left), self.number(right)
        if one is None or other is None:
            return None
        if isinstance(left, Counter) and type(right) is Const:
            return self._with_constant(kind, left, other)
        return Const(_ORDERS[kind](one, other))

    def _guess(self, kind: type[ast.cmpop], left: Counter, right: Unknown) -> None:
        """A length that is compared with the number of a round is the one of that loop."""
        base, offset = _split(right)
        if base in self._known:
            return
        if isinstance(base, tuple) and base[0] == "len":
            self._known[base] = left.loop, 0
        elif kind in (ast.Eq, ast.NotEq) and _LENGTH.search(right.name):
            self._known[base] = left.loop, left.loop.start - 1 + left.shift - offset

    def _with_constant(self, kind: type[ast.cmpop], left: Counter, limit: int) -> Value:
        loop = left.loop
        last = loop.start + loop.rounds - 1 + left.shift  # of the rounds that are run
        if loop.length is not None and not loop.is_read_whole():
            real = loop.start + loop.length - 1 + left.shift
            if limit >= real:  # it speaks of the end of the loop
                last = loop.start + self._loops.total(loop) - 1 + left.shift
                return Const(_ORDERS[kind](left.value, limit - real + last))
        if not loop.is_read_whole():
            bound = limit + (kind in (ast.LtE, ast.Gt))
            ended = left.value >= last
            if kind in (ast.Lt, ast.LtE) and bound > last:  # later rounds are not below it
                return Const(False) if ended else Unknown(("below", loop.node, bound))
            if kind in (ast.Gt, ast.GtE) and bound > last:
                return Unknown(("above", loop.node, bound)) if ended else Const(False)
        return Const(_ORDERS[kind](left.value, limit))

    def _among(self, op: ast.cmpop, left: Value, right: Value) -> Value | None:
        """``i in (0, len(loader) - 1)``."""
        if not isinstance(right, Sequence) or all(isinstance(v, Const) for v in right.items):
            return None
        found = [self.compared(ast.Eq(), left, item) for item in right.items]
        if None in found:
            return None
        return Const(any(v is not None and v.truth for v in found) is isinstance(op, ast.In))

    def _remainder(self, kind: type[ast.cmpop], left: Modulo, right: Value) -> Value | None:
        """The value of a comparison of a remainder; every period is read as two rounds."""
        number, period = self.number(left.left), self.number(left.right) or _LONG
        limit = self.number(right)
        if isinstance(right, Sum) and right.base == left.right.key:
            limit = period + right.offset
        if number is None or limit is None or kind not in _ORDERS:
            return None
        limit -= left.offset
        if period == 1:
            return Const(_ORDERS[kind](0, limit))
        if kind not in (ast.Eq, ast.NotEq):
            return Const(_ORDERS[kind](period - 1 if number % 2 else 0, limit))
        last = limit == period - 1 and period > 1
        equal = (number + 1 if last else number - limit) % 2 == 0
        return Const(equal is (kind is ast.Eq))


def _split(value: Unknown) -> tuple[Hashable, int]:
    return (value.base, value.offset) if isinstance(value, Sum) else (value.key, 0)
