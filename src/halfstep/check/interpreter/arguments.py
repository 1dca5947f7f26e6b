"""The arguments of a call, and what of a training step is among them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from halfstep.check.source.inventory import last_name
from halfstep.check.values.kinds import (
    Const,
    Mapping,
    Method,
    Optimizer,
    Partial,
    Scaled,
    Scaler,
    Sequence,
    Value,
)
from halfstep.check.values.objects import Function, Instance, Scope

if TYPE_CHECKING:
    from halfstep.check.interpreter.expressions import Expressions


class Call:
    """A call and its arguments, each evaluated once and when first asked for."""

    def __init__(self, node: ast.Call, scope: Scope, expressions: Expressions) -> None:
        self.node = node
        self._scope = scope
        self._expressions = expressions
        self._given: list[Value] | None = None
        self._named: dict[str, Value] | None = None

    def count(self) -> int:
        """Number of arguments."""
        return len(self.node.args) + len(self.node.keywords)

    def names(self) -> set[str]:
        """Of the arguments given by name."""
        return {keyword.arg for keyword in self.node.keywords if keyword.arg}

    def given(self) -> list[Value]:
        """Arguments by position."""
        if self._given is None:
            self._given = list(self._positional())
        return self._given

    def _positional(self) -> Iterator[Value]:
        for node in self.node.args:
            value = self._expressions.evaluate(node, self._scope)
            if isinstance(node, ast.Starred) and isinstance(value, Sequence):
                yield from value.items
            else:
                yield value

    def named(self) -> dict[str, Value]:
        """Arguments by name."""
        if self._named is None:
            self._named = {
                keyword.arg or "**": self._expressions.evaluate(keyword.value, self._scope)
                for keyword in self.node.keywords
            }
        return self._named

    def all(self) -> list[Value]:
        """All arguments."""
        return [*self.given(), *self.named().values()]

    def evaluate_all(self) -> None:
        """For what happens in them."""
        self.all()

    def first(self) -> Value:
        """The first argument, by position or by name."""
        values = self.all()
        return values[0] if values else Const(None)

    def constants(self) -> dict[str, Any]:
        """Arguments by name whose value is a constant."""
        return {n: v.value for n, v in self.named().items() if isinstance(v, Const)}


class Given(Call):
    """A call whose arguments were evaluated before."""

    def __init__(self, node: ast.Call, given: list[Value], named: dict[str, Value]) -> None:
        self.node = node
        self._given = given
        self._named = named

    def count(self) -> int:
        """Number of arguments."""
        return len(self.all())


def training_objects(value: Value) -> Iterator[Value]:
    """Scalers, optimizers and scaled losses in `value`, at any depth."""
    if isinstance(value, (Scaler, Optimizer, Scaled)):
        yield value
    elif isinstance(value, Method):
        yield from training_objects(value.owner)
    elif isinstance(value, Partial):
        for item in (value.function, *value.given, *value.named.values()):
            yield from training_objects(item)
    elif isinstance(value, Function):
        yield from _used_by(value)
    elif isinstance(value, Sequence):
        for item in value.items:
            yield from training_objects(item)
    elif isinstance(value, Mapping):
        for item in value.items.values():
            yield from training_objects(item)
    elif isinstance(value, Instance):
        for item in value.attributes.values():
            if isinstance(item, (Scaler, Optimizer, Scaled)):
                yield item


def _used_by(function: Function) -> Iterator[Value]:
    """What a function that is handed on uses, if anything can happen in it."""
    if not function.scope.module.acts(function.node):
        return
    if isinstance(function.me, Instance):
        yield from training_objects(function.me)
    for node in ast.walk(function.node):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found = function.scope.find(node.id)
            if isinstance(found, (Scaler, Optimizer, Scaled)):
                yield found


def has_training_objects(value: Value) -> bool:
    """Whether there is one."""
    return next(training_objects(value), None) is not None


def is_infinite(call: Call, limit: int) -> bool:
    """Whether the limit of a clip is written as infinity: it only measures the norm."""
    nodes = [*call.node.args[limit : limit + 1], *(k.value for k in call.node.keywords)]
    texts = {ast.unparse(node) for node in nodes}
    return bool(texts & {"float('inf')", "math.inf", "np.inf", "torch.inf", "inf"})


def is_field(node: ast.stmt) -> bool:
    """Whether a statement of a class declares a field."""
    return isinstance(node, ast.AnnAssign) and last_name(node.target) is not None
