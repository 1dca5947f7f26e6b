"""Loss scaling without a scaler: a loss times a number, and gradients divided by it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfstep.rules.source import Source
from halfstep.rules.syntax import last, number, receiver

_DIVISIONS = frozenset(["div_", "div", "true_divide", "_foreach_div_", "_foreach_div"])


def is_scaled_by_hand(source: Source, loss: ast.expr) -> bool:
    """Whether `loss` is a product with a number by which something in the file is divided."""
    factors = [factor for value in _values(source, loss) for factor in _factors(value)]
    return bool(factors) and any(_is_same(f, d) for d in _divisors(source) for f in factors)


def _values(source: Source, loss: ast.expr) -> list[ast.expr]:
    return [loss, *(source.assigned(loss.id, loss) if isinstance(loss, ast.Name) else ())]


def _factors(value: ast.expr) -> Iterator[ast.expr]:
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
        yield from (value.left, value.right)
    elif isinstance(value, ast.Call) and last(value) in ("mul", "mul_", "multiply"):
        owner = receiver(value)
        yield from (*value.args, *([owner] if owner is not None else []))


def _divisors(source: Source) -> Iterator[ast.expr]:
    for operation in source.nodes(ast.BinOp):
        if isinstance(operation.op, ast.Div):
            yield operation.right
    for assignment in source.nodes(ast.AugAssign):
        if isinstance(assignment.op, ast.Div):
            yield assignment.value
    for call in source.nodes(ast.Call):
        if last(call) in _DIVISIONS and call.args:
            yield call.args[-1]


def _is_same(one: ast.expr, other: ast.expr) -> bool:
    value = number(one)
    if value is not None:
        return value == number(other) and value > 1
    return isinstance(one, (ast.Name, ast.Attribute)) and ast.dump(one) == ast.dump(other)
