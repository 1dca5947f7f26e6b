"""What one name may hold at each statement of one function, file or class."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from halfstep.rules.syntax import dotted, inside

SCALER, NONE, UNBOUND, UNKNOWN = "scaler", "None", "unbound", "unknown"
State = frozenset[str]
NEVER: State = frozenset()  # of a statement that is not reached
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


def one(what: str) -> State:
    """The state in which a name surely holds `what`."""
    return frozenset([what])


class _Loop(NamedTuple):
    left: set[str]
    repeated: set[str]


class Flow:
    """Follows a name over all paths of a block.

    Args:
        owner: The name, as ``scaler`` or ``self.scaler``.
        meaning: Gives what an expression may be.

    Attributes:
        before: What the name may hold before each statement that can be reached.
        end: What the name may hold when the block is left.
        stored: All that the block stores in the name.
    """

    def __init__(self, owner: str, meaning: Callable[[ast.expr], State]) -> None:
        self._owner = owner
        self._meaning = meaning
        self.before: dict[ast.stmt, State] = {}
        self.end: State = NEVER
        self.stored: State = NEVER
        self._loops: list[_Loop] = []
        self._tries: list[set[str]] = []

    def run(self, body: list[ast.stmt], start: State) -> Flow:
        """Follow the name through `body`, in which it begins as `start`."""
        self.end |= self._block(body, start)
        return self

    def _block(self, body: Iterable[ast.stmt], state: State) -> State:
        for statement in body:
            if not state:
                break
            state = self._statement(statement, state)
            self._note(state)
        return state

    def _note(self, state: State) -> None:
        """An exception can happen here."""
        for seen in self._tries:
            seen |= state

    def _statement(self, node: ast.stmt, state: State) -> State:
        self.before[node] = self.before.get(node, NEVER) | state
        self._note(state)
        if isinstance(node, ast.If):
            state = self._stores(node.test, state)
            yes, no = (self._tested(node.test, state, truth) for truth in (True, False))
            return self._block(node.body, yes) | self._block(node.orelse, no)
        if isinstance(node, _LOOPS):
            return self._loop(node, state)
        if isinstance(node, (ast.With, ast.AsyncWith)):
            return self._with(node, state)
        if isinstance(node, (ast.Try, ast.TryStar)):
            return self._try(node, state)
        if isinstance(node, ast.Match):
            bodies = (self._block(c.body, self._stores(c.pattern, state)) for c in node.cases)
            return state.union(*bodies)
        return self._simple(node, state)

    def _simple(self, node: ast.stmt, state: State) -> State:
        if isinstance(node, _DEFINITIONS):
            return self._unknown() if node.name == self._owner.split(".")[0] else state
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = {(a.asname or a.name).split(".")[0] for a in node.names}
            return self._unknown() if self._owner.split(".")[0] in names else state
        state = self._stores(node, state)
        if isinstance(node, ast.Return):
            self.end |= state
            return NEVER
        if isinstance(node, (ast.Break, ast.Continue)) and self._loops:
            frame = self._loops[-1]
            (frame.left if isinstance(node, ast.Break) else frame.repeated).update(state)
        return NEVER if isinstance(node, (ast.Raise, ast.Break, ast.Continue)) else state

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, state: State) -> State:
        head = node.test if isinstance(node, ast.While) else node.target
        frame, begin = _Loop(set(), set()), state
        self._loops.append(frame)
        while True:
            inner = self._stores(head, begin)
            if isinstance(node, ast.While):
                inner = self._tested(node.test, inner, True)
            again = begin | self._block(node.body, inner) | frame.repeated
            if again == begin:
                break
            begin = again
        self._loops.pop()
        endless = isinstance(node, ast.While) and getattr(node.test, "value", False) is True
        return (NEVER if endless else self._block(node.orelse, begin)) | frame.left

    def _with(self, node: ast.With | ast.AsyncWith, state: State) -> State:
        swallows = any("suppress" in ast.unparse(item.context_expr) for item in node.items)
        for item in node.items:
            state = self._stores(item, state)
        with self._exceptions() as seen:
            end = self._block(node.body, state)
        return end | seen if swallows else end

    def _try(self, node: ast.Try | ast.TryStar, state: State) -> State:
        with self._exceptions() as seen:
            end = self._block(node.body, state)
        thrown = state | seen
        with self._exceptions() as seen:
            end = self._block(node.orelse, end)
            for handler in node.handlers:
                caught = self._unknown() if handler.name == self._owner else thrown
                end |= self._block(handler.body, caught)
        self._block(node.finalbody, end | thrown | seen)
        return self._block(node.finalbody, end)

    @contextmanager
    def _exceptions(self) -> Iterator[set[str]]:
        seen: set[str] = set()
        self._tries.append(seen)
        yield seen
        self._tries.pop()

    def _stores(self, node: ast.AST, state: State) -> State:
        """The state after all that `node` itself binds or deletes."""
        known = {id(target): value for target, value in _assigned(node)}
        for inner in inside(node):
            if not isinstance(inner, (ast.Name, ast.Attribute)) or not self._touches(inner):
                continue
            if isinstance(inner.ctx, ast.Del):
                state = one(UNBOUND)
            elif id(inner) in known and dotted(inner) == self._owner:
                state = self._meaning(known[id(inner)])
                self.stored |= state
            else:  # of another object, if what it is an attribute of has changed
                state = self._unknown() if dotted(inner) == self._owner else one(UNKNOWN)
        captured = (getattr(n, "name", None) for n in inside(node) if isinstance(n, ast.pattern))
        return self._unknown() if self._owner in captured else state

    def _touches(self, node: ast.Name | ast.Attribute) -> bool:
        """Whether the name itself, or what it is an attribute of, gets another meaning."""
        if isinstance(node.ctx, ast.Load):
            return False
        name = dotted(node)
        return name == self._owner or (bool(name) and self._owner.startswith(f"{name}."))

    def _unknown(self) -> State:
        self.stored |= one(UNKNOWN)
        return one(UNKNOWN)

    def _tested(self, test: ast.expr, state: State, truth: bool) -> State:
        """What is left of `state` where `test` is true, or false."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return self._tested(test.operand, state, not truth)
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) == truth:
            for part in test.values:
                state = self._tested(part, state, truth)
            return state
        holds = _asks_for(test, self._owner)
        if holds is None:
            return state
        return state - {UNBOUND, NONE if holds == truth else SCALER}


def _assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Each target of an assignment with the expression that it gets, where the text shows it."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            pairs = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
            parts = (*_parts(target), *_parts(node.value))
            if not pairs:
                yield target, node.value
            elif len(_parts(target)) == len(_parts(node.value)) and not any(
                isinstance(part, ast.Starred) for part in parts
            ):
                yield from zip(_parts(target), _parts(node.value), strict=True)
    elif isinstance(node, ast.AnnAssign) and node.value:
        yield node.target, node.value


def _parts(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else []


def _asks_for(test: ast.expr, owner: str) -> bool | None:
    """Whether `test` is true where `owner` is something, or where it is ``None``."""
    if dotted(test) == owner:
        return True
    if not isinstance(test, ast.Compare) or dotted(test.left) != owner or len(test.ops) != 1:
        return None
    with_none = isinstance(test.comparators[0], ast.Constant) and test.comparators[0].value is None
    if not with_none or not isinstance(test.ops[0], (ast.Is, ast.IsNot, ast.Eq, ast.NotEq)):
        return None
    return isinstance(test.ops[0], (ast.IsNot, ast.NotEq))
