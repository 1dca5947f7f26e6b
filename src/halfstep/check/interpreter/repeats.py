"""Calls that were followed before: a function that does nothing is not read again.

The helpers of an evaluation, of plots and of losses are called many times on a path. One in which
nothing happened, and that changed nothing, gives an unknown value again for arguments of the same
kinds; the value depends on the models that its arguments depend on.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from halfstep.check.values.base import NOBODY, Const, Unknown, Value
from halfstep.check.values.containers import Sequence
from halfstep.check.values.objects import Function

if TYPE_CHECKING:
    from halfstep.check.interpreter.machine import Machine

_Arguments = list[Value]
_Maker = Callable[[_Arguments], Value]
_DEPTH = 3  # of lists in lists


class Repeats:
    """Remembers for a `Machine` what calls gave."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._makers: dict[Hashable, _Maker | None] = {}

    def call(
        self,
        function: Function,
        given: _Arguments,
        named: dict[str, Value],
        run: Callable[[], Value],
    ) -> Value:
        """What `function` gives: from an earlier call where that is enough, else from `run`."""
        arguments = [*given, *named.values()]
        key = self._key(function, given, named)
        if key is None:
            return run()
        make = self._makers.get(key)
        if make is not None:
            return make(arguments)
        before = self._state()
        result = run()
        if self._state() == before:
            name = f"{function.scope.module.path}:{function.node.lineno}"
            if type(result) is Unknown and result.is_new():
                result.made_by(name, arguments)
            self._makers[key] = self._maker(result, arguments, name)
        return result

    def _state(self) -> tuple[object, ...]:
        """What a call must leave as it is."""
        state = self._machine.state
        return (
            len(self._machine.path.events),
            state.num_writes,
            state.finite_known,
            state.num_skip_tests,
        )

    def _key(
        self, function: Function, given: _Arguments, named: dict[str, Value]
    ) -> Hashable | None:
        if function.scope.module.acts(function.node):
            return None
        parts = [value.likeness(_DEPTH) for value in (*given, *named.values())]
        me = function.me.likeness(_DEPTH) if function.me is not None else ()
        if me is None or None in parts:
            return None
        return function.node, me, tuple(parts), tuple(named), self._machine.state.frame.no_grad

    def _maker(self, result: Value, arguments: _Arguments, by: str) -> _Maker | None:
        if isinstance(result, Const):
            return lambda _: result
        if isinstance(result, Sequence):
            makers = [
                self._maker(item, arguments, f"{by}.{i}") for i, item in enumerate(result.items)
            ]
            known = [maker for maker in makers if maker is not None]
            if len(known) < len(makers):
                return None
            return lambda given: Sequence([make(given) for make in known])
        if type(result) is not Unknown or result.root != result.key or not result.is_new():
            return None
        sources = [i for i, a in enumerate(arguments) if a.models and a.models <= result.models]
        if result.models != NOBODY.union(*(arguments[i].models for i in sources)):
            return None
        name, unknown = result.name, self._machine.unknown

        def make(given: _Arguments) -> Value:
            models = NOBODY.union(*(given[i].models for i in sources))
            return unknown(name, models).made_by(by, given)

        return make
