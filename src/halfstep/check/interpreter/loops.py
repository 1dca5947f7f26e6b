"""Loops of the interpreter: how many rounds of each are run, and with what.

A loop is run twice, four times where something counts its rounds. What the program asks about the
length of what it goes through is answered from these rounds, see
`halfstep.check.interpreter.lengths`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from halfstep.check.interpreter.ends import LoopContinued, LoopLeft
from halfstep.check.interpreter.lengths import Lengths
from halfstep.check.source.shapes import (
    LoopNode,
    asks_for_rest,
    bound_names,
    counted_names,
    counts,
    has_inner_loop,
    is_count,
    windows,
    windows_of_objects,
)
from halfstep.check.values.base import Const, External, Unknown, Value
from halfstep.check.values.containers import MAX_ITEMS, Mapping, Sequence
from halfstep.check.values.numbers import Counted, Counter, Loop, is_whole
from halfstep.check.values.objects import Scope

if TYPE_CHECKING:
    from halfstep.check.interpreter.machine import Machine


class Loops:
    """Runs loops for a `Machine`.

    Attributes:
        lengths: What the program asks about them.
        windows: Variables that count the micro-batches of a window, as they are written.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.lengths = Lengths(self)
        self.windows: frozenset[str] = frozenset()

    def run(self, node: LoopNode, scope: Scope) -> bool:
        """Run a loop; whether it came to its end."""
        if isinstance(node, ast.While):
            loop = self._begin(node, None)
            rounds = self._while(node, loop, scope)
        else:
            over = self._machine.evaluate(node.iter, scope)
            loop = self._begin(node, over)
            rounds = self._for(node, loop, over, scope)
        try:
            return all(rounds)
        finally:
            loop.rest = bool(loop.rest)

    def _for(
        self, node: ast.For | ast.AsyncFor, loop: Loop, over: Value, scope: Scope
    ) -> Iterator[bool]:
        """Rounds of a loop over something; whether another may follow each."""
        items = over.iterate(loop.rounds + 1, self._machine)
        if isinstance(over, Counted):
            items = over.counted(loop.rounds + 1, loop, self._machine)
        for item in items:
            if loop.index == loop.rounds and not loop.rest:
                return
            self._machine.bind(node.target, item, scope)
            yield self._round(loop, scope)

    def _while(self, node: ast.While, loop: Loop, scope: Scope) -> Iterator[bool]:
        """Rounds of a loop with a condition."""
        test = node.test
        if is_count(test) and not has_inner_loop(node):
            sides = (test.left, test.comparators[0])
            left, right = (self._machine.evaluate(side, scope) for side in sides)
            self.lengths.bind_condition(loop, test, left, right)
        while loop.index < loop.rounds + bool(loop.rest):
            if self._machine.evaluate(test, scope).truth is False:
                return
            yield self._round(loop, scope)

    def _begin(self, node: LoopNode, over: Value | None) -> Loop:
        module = self._machine.state.module
        acts = any(map(module.acts, node.body))
        counting = acts and module.once("counts", node, lambda: counts(node, module))
        start = over.start if isinstance(over, Counted) else 0
        rounds, length = 4 if counting else 2 if acts else 1, _length(over)
        if length is not None and length <= max(rounds, MAX_ITEMS if _is_listed(over) else 4):
            rounds = length
        loop = Loop(node, rounds, start, length)
        loop.chosen = self._machine.state.frame.chosen
        if counting:
            self.windows |= windows(node, module) | windows_of_objects(module)
        if not counting or loop.is_read_whole():
            loop.rest = False
        elif length is not None:
            loop.rest = length % 2 == 1
        self.lengths.note(loop, over)
        if loop.rest is None and module.once("rest", node, lambda: asks_for_rest(node, module)):
            self.total(loop)
        return loop

    def fills_window(self, left: ast.expr, value: Value, limit: Value) -> bool:
        """Whether a comparison asks if a window, counted by a variable, is full."""
        if not isinstance(value, Const):
            return False
        if isinstance(limit, Const) and (type(limit.value) is not int or limit.value < 2):
            return False
        return self.is_window(left.left if isinstance(left, ast.BinOp) else left)

    def at_end(self, node: ast.Compare, left: Value, right: Value) -> bool | None:
        """What ``i < limit`` gives in the last round that is run of a loop that counts `i`.

        The program has more rounds, and nobody skips all that a loop goes through, or does
        something in none of its rounds. ``None`` where the comparison is of another kind.
        """
        written, swapped = node.left, isinstance(node.ops[0], (ast.Gt, ast.GtE))
        if not isinstance(node.ops[0], (ast.Lt, ast.LtE, ast.Gt, ast.GtE)):
            return None
        if not is_whole(left):  # limit > i
            written, left, right, swapped = node.comparators[0], right, left, not swapped
        loop = self._innermost()
        if loop is None or not is_whole(left) or not _is_limit(right, loop):
            return None
        if loop.index + 1 < loop.rounds + bool(loop.rest):
            return None
        if isinstance(left, Counter):
            return swapped if left.loop is loop else None
        return swapped if ast.unparse(written) in counted_names(loop.node) else None

    def is_window(self, node: ast.expr) -> bool:
        """Whether `node` is a variable that counts the micro-batches of a window, or a list."""
        if isinstance(node, ast.Call) and node.args and isinstance(node.func, ast.Name):
            node = node.args[0] if node.func.id == "len" else node
        return isinstance(node, (ast.Name, ast.Attribute)) and ast.unparse(node) in self.windows

    def total(self, loop: Loop) -> int:
        """How many rounds of a loop are run; from now on this is settled."""
        if loop.rest is None:
            loop.rest = self._machine.decide(("rest", loop.node), False)
        return loop.rounds + loop.rest

    def is_last(self, part: ast.expr) -> bool | None:
        """Whether the last round is run, if `part` speaks of what a loop sets in each round."""
        loop = self._innermost()
        if loop is None:
            return None
        names = {n.id for n in ast.walk(part) if isinstance(n, ast.Name)}
        if not names & bound_names(loop.node):
            return None
        return loop.index == self.total(loop) - 1

    def _round(self, loop: Loop, scope: Scope) -> bool:
        """One round of a loop; whether another may follow."""
        state = self._machine.state
        try:
            with state.entered(loops=(*state.frame.loops, loop)):
                self._machine.run(loop.node.body, scope)
        except LoopContinued:
            return True
        except LoopLeft:
            return False
        finally:
            loop.index += 1
        return True

    def constant(self, value: Value) -> int | None:
        """The number that the path has found `value` equal to."""
        found: int | None = self._machine.knowledge.constant(value.question)
        return found

    def lines(self) -> tuple[int, ...]:
        """Of the loops that are running, outermost first."""
        return tuple(loop.node.lineno for loop in self._machine.state.frame.loops)

    def indices(self) -> tuple[int, ...]:
        """Their rounds, in the same order."""
        return tuple(loop.index for loop in self._machine.state.frame.loops)

    def _innermost(self) -> Loop | None:
        loops = self._machine.state.frame.loops
        return loops[-1] if loops else None


def _is_limit(value: Value, loop: Loop) -> bool:
    """Whether the rounds that are run may not reach it, and those of the program may."""
    if isinstance(value, Const):
        return loop.length is None and type(value.value) is int and value.value >= loop.rounds
    return isinstance(value, (Unknown, External))


def _is_listed(over: Value | None) -> bool:
    while isinstance(over, Counted):
        over = over.over
    return isinstance(over, (Sequence, Mapping)) and bool(over.items)


def _length(over: Value | None) -> int | None:
    """Of what a loop goes through, where it is known."""
    while isinstance(over, Counted) and over.over is not None:
        over = over.over
    if isinstance(over, Counted):
        return over.length
    if isinstance(over, (Sequence, Mapping)) and over.items:
        return min(len(over.items), MAX_ITEMS)
    return 1 if over is not None and over.stands_for_all else None
