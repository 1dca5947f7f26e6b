"""Gradients of representations: kept by hand, they bring the scale into the next backward.

A model too large for one batch is run twice: once for its representations, whose loss gives the
gradients of these, and once in pieces, whose "loss" is the product of the two.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfstep.check.values.kinds import NOBODY, Carried, Const, Scaled, Sequence, Value

# Methods and functions of torch after which the numbers still carry the scale.
_SAME_WORDS = """
    chunk split view reshape flatten detach clone float double to cuda cpu unsqueeze squeeze
    contiguous transpose permute t sum mean unbind mul dot inner einsum matmul cat stack tensordot
    vdot add
"""
_SAME = frozenset(_SAME_WORDS.split())


def keeps_scale(method: str) -> bool:
    """Whether what a method or function gives carries the scale of what it is given."""
    return method in _SAME


def product(values: list[Value]) -> Scaled | Carried | None:
    """What is made of `values`, some of which carry a scale; ``None`` if none does."""
    inside = [part for value in values for part in _parts(value)]
    scaled = next((part for part in inside if isinstance(part, Scaled)), None)
    carried = next((part for part in inside if isinstance(part, Carried)), None)
    models = NOBODY.union(*(value.models for value in values))
    if scaled is not None:
        return Scaled(scaled.scaler, models)
    if carried is not None and models:
        return Scaled(carried.scaler, models)
    return carried


def _parts(value: Value) -> Iterator[Value]:
    if isinstance(value, Sequence):
        for item in value.items:
            yield from _parts(item)
    else:
        yield value


def combined(op: ast.operator, left: Value, right: Value) -> Scaled | Carried | None:
    """What an operator makes of values, some of which carry a scale."""
    if isinstance(op, (ast.Mult, ast.Add, ast.Sub, ast.MatMult)):
        return product([left, right])
    by_number = isinstance(op, ast.Div) and isinstance(right, Const)
    return product([left]) if by_number else None  # by its own norm, it carries none
