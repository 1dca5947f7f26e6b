"""``with`` blocks of the interpreter: contexts of torch, and the project's own context managers.

A function under ``@contextmanager`` runs up to its ``yield``, then the block, then the rest of it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from halfstep.check.interpreter.ends import LEAVES, Raised
from halfstep.check.torch_models.contexts import Context
from halfstep.check.values.base import Const, Value
from halfstep.check.values.objects import Function, Scope
from halfstep.check.values.state import FunctionNode

if TYPE_CHECKING:
    from halfstep.check.interpreter.machine import Machine

_Then = Callable[[Value], None]


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
        value = self._machine.evaluate(item.context_expr, scope)

        def inner(given: Value) -> None:
            if item.optional_vars is not None:
                self._machine.bind(item.optional_vars, given, scope)
            self._items(rest, body, scope)

        if isinstance(value, Manager):
            self._around(value, inner)
        elif isinstance(value, Context):
            with value.around(item.context_expr, self._machine):
                inner(value)
        else:
            inner(value)

    def _around(self, manager: Manager, inner: _Then) -> None:
        """Run the function of a manager, and what it is around where it yields."""
        state, node = self._machine.state, manager.function.node
        frame = state.frame
        ends: list[BaseException] = []
        ran = False

        def then(value: Value) -> None:
            nonlocal ran
            ran = True
            own = state.frame
            try:  # the block does not see the manager's own function, but is in its contexts
                with state.entered(**{**frame._asdict(), "no_grad": own.no_grad}):
                    inner(value)
            except LEAVES as end:  # a return, a break: the manager ends first
                ends.append(end)

        before = self._waiting.get(node)
        self._waiting[node] = then
        try:
            self._machine.calls.run_body(manager.function, manager.given, manager.named)
        except Raised:
            if not ends:
                raise
        finally:
            self._waiting.pop(node, None)
            if before is not None:
                self._waiting[node] = before
        if not ran:  # nobody saw where it yields
            inner(self._machine.unknown())
        for end in ends:
            raise end

    def yielded(self, node: ast.Yield, scope: Scope) -> Value:
        """What stands at a ``yield``: the block, if the function is a context manager."""
        machine = self._machine
        given = machine.evaluate(node.value, scope) if node.value else Const(None)
        functions = machine.state.frame.functions
        then = self._waiting.pop(functions[-1], None) if functions else None
        if then is not None:
            then(given)
        return machine.unknown()
