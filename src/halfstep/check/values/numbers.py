"""Numbers of the interpreter that speak of rounds of loops."""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING

from halfstep.check.source.shapes import LoopNode
from halfstep.check.values.base import Const, Unknown, Value
from halfstep.check.values.containers import Sequence

if TYPE_CHECKING:
    from halfstep.check.values.run import Run

_MAX_LENGTH = 4  # of a range that is read whole


class Loop:
    """One run of a loop.

    Attributes:
        node: The statement.
        index: Rounds before the one that is run.
        start: The number of the first round, where the loop counts.
        length: Rounds of the program, where they are known.
        rounds: Rounds that are run, if no part of a window is left over.
        rest: Whether one is left over; ``None`` as long as nobody has asked.
        chosen: Depth of branches, chosen without knowing, that the loop itself stands in.
    """

    def __init__(self, node: LoopNode, rounds: int, start: int, length: int | None) -> None:
        self.node = node
        self.index = 0
        self.chosen = 0
        self.start = start
        self.length = length
        self.rounds = rounds
        self.rest: bool | None = None

    def is_read_whole(self) -> bool:
        """Whether each of its rounds is run."""
        return self.length is not None and self.length <= self.rounds


class Counter(Const):
    """The number of a round, counted by its loop.

    Attributes:
        loop: The loop.
        shift: What was added to it.
    """

    __slots__ = ("loop", "shift")

    def __init__(self, value: int, loop: Loop, shift: int) -> None:
        super().__init__(value)
        self.loop = loop
        self.shift = shift


class Sum(Unknown):
    """An unknown number and a known one: ``len(loader) - 1``.

    Attributes:
        base: The key of the unknown one.
        offset: The known one.
    """

    __slots__ = ("base", "offset")

    def __init__(self, key: Hashable, name: str, base: Hashable, offset: int) -> None:
        super().__init__(key, name)
        self.base = base
        self.offset = offset


class Modulo(Value):
    """``left % right + offset``; every period is read as two."""

    __slots__ = ("left", "offset", "right")

    def __init__(self, left: Value, right: Value, offset: int = 0) -> None:
        self.left = left
        self.right = right
        self.offset = offset

    @property
    def key(self) -> Hashable:
        """The same for the same remainder."""
        return ("remainder", self.left.key, self.right.key, self.offset)

    @property
    def truth(self) -> bool | None:
        """Only the loop knows, see `halfstep.check.interpreter.lengths`."""
        return None


class Counted(Value):
    """``range(n)`` or ``enumerate(over)``.

    Attributes:
        over: What is counted; ``None`` for a range.
        start: The first number.
        length: Of the range, if it is known.
        bound: Where the range ends, if that is not known.
    """

    __slots__ = ("bound", "length", "over", "start")

    def __init__(
        self,
        over: Value | None,
        start: int = 0,
        length: int | None = None,
        bound: Value | None = None,
    ) -> None:
        self.over = over
        self.start = start
        self.length = length
        self.bound = bound

    def iterate(self, rounds: int, run: Run) -> Iterator[Value]:
        return self.counted(rounds, None, run)

    def counted(self, rounds: int, loop: Loop | None, run: Run) -> Iterator[Value]:
        """Its numbers, which know the loop that counts them."""
        if self.over is not None:
            for i, item in enumerate(self.over.iterate(rounds, run)):
                yield Sequence([_number(self.start + i, loop), item])
            return
        known = self.length if self.length is not None and self.length <= _MAX_LENGTH else None
        for i in range(rounds if known is None else known):
            yield _number(self.start + i, loop)

    def likeness(self, depth: int) -> Hashable | None:
        return "counted"


def _number(value: int, loop: Loop | None) -> Const:
    return Counter(value, loop, 0) if loop is not None else Const(value)


def is_whole(value: Value) -> bool:
    """Whether it is a number that is known."""
    return isinstance(value, Const) and type(value.value) is int


def added(op: ast.operator, left: Value, right: Value, key: Hashable) -> Value | None:
    """An unknown number and a known one, added."""
    if isinstance(op, ast.Add) and isinstance(left, Const):
        left, right = right, left
    if not isinstance(op, (ast.Add, ast.Sub)) or not is_whole(right):
        return None
    assert isinstance(right, Const)
    more = right.value if isinstance(op, ast.Add) else -right.value
    if isinstance(left, Modulo):
        return Modulo(left.left, left.right, left.offset + more)
    if isinstance(left, Sum):
        return Sum(key, left.name, left.base, left.offset + more)
    plain = isinstance(left, Unknown) and not left.models
    return Sum(key, left.name, left.key, more) if plain else None  # type: ignore[attr-defined]
