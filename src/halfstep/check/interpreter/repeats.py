"""Calls that were followed before: a function that does nothing is not read again.

The helpers of an evaluation, of plots and of losses are called many times on a path. One in which
nothing happened, and that changed nothing, gives an unknown value again for arguments of the same
kinds; the value depends on the models that its arguments depend on.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from halfstep.check.values.counting import Counted
from halfstep.check.values.kinds import (
    NOBODY,
    Const,
    External,
    Mapping,
    Params,
    Repeated,
    Sequence,
    Unknown,
    Value,
)
from halfstep.check.values.objects import Class, Function, Instance

if TYPE_CHECKING:
    from halfstep.check.interpreter.machine import Machine

_Arguments = list[Value]
_Maker = Callable[[_Arguments], Value]
_MAX_ITEMS = 8


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
            self._makers[key] = self._maker(result, arguments)
        return result

    def _state(self) -> tuple[object, ...]:
        """What a call must leave as it is."""
        machine = self._machine
        return (
            len(machine.path.events),
            machine.binding.writes,
            machine.finite_known,
            machine.tests_seen,
        )

    def _key(
        self, function: Function, given: _Arguments, named: dict[str, Value]
    ) -> Hashable | None:
        if function.scope.module.acts(function.node):
            return None
        parts = [_kind(value) for value in (*given, *named.values())]
        me = _kind(function.me) if function.me is not None else ()
        if me is None or None in parts:
            return None
        return function.node, me, tuple(parts), tuple(named), self._machine.no_grad > 0

    def _maker(self, result: Value, arguments: _Arguments) -> _Maker | None:
        if isinstance(result, Const):
            return lambda _: result
        if isinstance(result, Sequence):
            makers = [self._maker(item, arguments) for item in result.items]
            known = [maker for maker in makers if maker is not None]
            if len(known) < len(makers):
                return None
            return lambda given: Sequence([make(given) for make in known])
        if type(result) is not Unknown or result.root != result.key or not _is_new(result):
            return None
        sources = [i for i, a in enumerate(arguments) if a.models and a.models <= result.models]
        if result.models != NOBODY.union(*(arguments[i].models for i in sources)):
            return None
        name, unknown = result.name, self._machine.unknown
        return lambda given: unknown(name, NOBODY.union(*(given[i].models for i in sources)))


def _is_new(value: Unknown) -> bool:
    return isinstance(value.key, tuple) and value.key[0] == "new"


def _kind(value: Value, depth: int = 3) -> Hashable | None:
    """Equal for arguments with which a function does the same; ``None`` where that is not known."""
    if isinstance(value, Const):
        return ("const", repr(value.value))
    if isinstance(value, Unknown):
        return ("unknown", value.name)
    if isinstance(value, Instance):
        return value.key
    if isinstance(value, External):
        return value.key
    if isinstance(value, (Function, Class)):
        return value.node
    if isinstance(value, Repeated) and depth:
        return _joined("repeated", [value.item], depth)
    if isinstance(value, Sequence) and depth and len(value.items) <= _MAX_ITEMS:
        return _joined("sequence", value.items, depth)
    if isinstance(value, Mapping) and depth and len(value.items) <= _MAX_ITEMS:
        inner = _joined("mapping", list(value.items.values()), depth)
        return inner and (inner, tuple(map(str, value.items)))
    return type(value).__name__ if isinstance(value, (Params, Counted)) else None


def _joined(what: str, items: list[Value], depth: int) -> Hashable | None:
    kinds = [_kind(item, depth - 1) for item in items]
    return None if None in kinds else (what, *kinds)
