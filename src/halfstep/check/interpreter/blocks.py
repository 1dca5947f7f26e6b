"""``with`` blocks of the interpreter, generator functions as context managers included."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from halfstep.check.interpreter.explore import Raised
from halfstep.check.source.module import Module
from halfstep.check.values.kinds import Const, Context, Value
from halfstep.check.values.objects import Function, FunctionNode, Scope
from halfstep.rules import events as e

if TYPE_CHECKING:
    from halfstep.check.interpreter.machine import Machine

_Then = Callable[[Value], None]
_Frame = tuple[Module | None, list[FunctionNode], int, int, tuple[int, int]]


class Manager(Value):
    """What a function under ``@contextmanager`` gives: its body around that of the block."""

    __slots__ = ("function", "given", "named")

    def __init__(self, function: Function, given: list[Value], named: dict[str, Value]) -> None:
        self.function = function
        self.given = given
        self.named = named


class Blocks:
    """Runs ``with`` statements for a `Machine`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._waiting: dict[FunctionNode, _Then] = {}

    def run(self, node: ast.With | ast.AsyncWith, scope: Scope) -> None:
        """Execute a ``with`` statement."""
        self._items(node.items, node.body, scope)

    def _items(self, items: list[ast.withitem], body: list[ast.stmt], scope: Scope) -> None:
        if not items:
            self._machine.run(body, scope)
            return
        item, rest = items[0], items[1:]
        value = self._machine.expressions.evaluate(item.context_expr, scope)

        def inner(given: Value) -> None:
            if item.optional_vars is not None:
                self._machine.binding.bind(item.optional_vars, given, scope)
            self._items(rest, body, scope)

        if isinstance(value, Manager):
            self.around(value, inner)
        elif isinstance(value, Context):
            self.enter(value, item.context_expr)
            try:
                inner(value)
            finally:
                self.leave(value, item.context_expr)
        else:
            inner(value)

    def around(self, manager: Manager, inner: _Then) -> None:
        """Run the function of a manager, and what it is around where it yields."""
        machine, node = self._machine, manager.function.node
        frame = self._frame()
        machine.stack = [*machine.stack]  # the block does not see the manager's own function
        ends: list[BaseException] = []
        ran = False

        def then(value: Value) -> None:
            nonlocal ran
            ran = True
            own = self._frame()
            self._set_frame(frame)
            try:
                inner(value)
            except machine.LEAVES as end:  # a return, a break: the manager ends first
                ends.append(end)
            finally:
                self._set_frame(own)

        before = self._waiting.get(node)
        self._waiting[node] = then
        try:
            machine.call_body(manager.function, manager.given, manager.named)
        except Raised:
            if not ends:
                raise
        finally:
            self._waiting.pop(node, None)
            if before is not None:
                self._waiting[node] = before
        if not ran:  # nobody saw where it yields
            inner(machine.unknown())
        for end in ends:
            raise end

    def _frame(self) -> _Frame:
        machine = self._machine
        weak = machine.binding.frame, machine.binding.weak
        return machine.module, machine.stack, machine.chosen, machine.guarded, weak

    def _set_frame(self, frame: _Frame) -> None:
        machine = self._machine
        machine.module, machine.stack, machine.chosen, machine.guarded, weak = frame
        machine.binding.frame, machine.binding.weak = weak

    def yielded(self, node: ast.Yield, scope: Scope) -> Value:
        """What stands at a ``yield``: the block, if the function is a context manager."""
        machine = self._machine
        given = machine.expressions.evaluate(node.value, scope) if node.value else Const(None)
        then = self._waiting.pop(machine.stack[-1], None) if machine.stack else None
        if then is not None:
            then(given)
        return machine.unknown()

    def enter(self, context: Context, node: ast.AST) -> None:
        """Go into a context manager of torch."""
        if context.kind == "no_grad":
            self._machine.no_grad += 1
            return
        kind = e.AUTOCAST_ENTER if context.kind == "autocast" else e.NO_SYNC_ENTER
        if kind == e.NO_SYNC_ENTER and self._machine.chosen:
            context.facts["chosen"] = True
        self._machine.emit(kind, node, facts=context.facts)

    def leave(self, context: Context, node: ast.AST) -> None:
        """Leave it."""
        if context.kind == "no_grad":
            self._machine.no_grad -= 1
            return
        kind = e.AUTOCAST_EXIT if context.kind == "autocast" else e.NO_SYNC_EXIT
        self._machine.emit(kind, node)
