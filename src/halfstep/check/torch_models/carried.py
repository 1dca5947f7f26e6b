"""Gradients of representations: kept by hand, they bring the scale into the next backward.

A model too large for one batch is run twice: once for its representations, whose loss gives the
gradients of these, and once in pieces, whose "loss" is the product of the two.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfstep.check.torch_models.scales import Scaled, backward
from halfstep.check.torch_models.table import attributes, operators, watches
from halfstep.check.values.base import NOBODY, Const, External, Unknown, Value
from halfstep.check.values.call import Call
from halfstep.check.values.containers import flat
from halfstep.check.values.regions import roots
from halfstep.check.values.run import Run
from halfstep.rules import events as e

# Methods and functions of torch after which the numbers still carry the scale.
_SAME_WORDS = """
    chunk split view reshape flatten detach clone float double to cuda cpu unsqueeze squeeze
    contiguous transpose permute t sum mean unbind mul dot inner einsum matmul cat stack tensordot
    vdot add
"""
_SAME = frozenset(_SAME_WORDS.split())


class Carried(Value):
    """A gradient that is no parameter's and carries a scale: of a representation, kept by hand."""

    __slots__ = ("scaler",)
    answers_methods = True

    def __init__(self, scaler: str) -> None:
        self.scaler = scaler

    @property
    def truth(self) -> bool | None:
        return None

    def item(self, index: Value, node: ast.Subscript, run: Run) -> Value:
        return self

    def unpacked(self, index: int, run: Run) -> Value:
        return self

    def iterate(self, rounds: int, run: Run) -> Iterator[Value]:
        return iter([self] * rounds)

    def method(self, name: str, call: Call, run: Run) -> Value | None:
        call.evaluate_all()
        return self if name in _SAME else run.unknown()


@attributes("*.grad")
def _gradient(owner: Unknown, run: Run) -> Value | None:
    """The gradient of something that is no model carries the scale of the last backward."""
    state = run.state
    owned = (roots(of) for of in state.optimizers.values() if of)
    if state.carrying is None or state.module.is_model(owner.name):
        return None
    return None if any(owner.root in of for of in owned) else Carried(state.carrying)


def product(values: list[Value]) -> Scaled | Carried | None:
    """What is made of `values`, some of which carry a scale; ``None`` if none does."""
    inside = list(flat(values))
    scaled = next((part for part in inside if isinstance(part, Scaled)), None)
    carried = next((part for part in inside if isinstance(part, Carried)), None)
    models = NOBODY.union(*(value.models for value in values))
    if scaled is not None:
        return Scaled(scaled.scaler, models)
    if carried is not None and models:
        return Scaled(carried.scaler, models)
    return carried


def backward_from(call: Call, owner: Value | None, run: Run) -> Value | None:
    """``tensor.backward(gradient)`` with a gradient that carries a scale."""
    made = product(call.all())
    if made is None:
        return None
    values = [*call.all(), *([owner] if owner is not None else [])]
    backward(call.node, NOBODY.union(*(v.models for v in values)), made.scaler, run)
    return run.unknown()


@operators
def _combined(op: ast.operator, left: Value, right: Value, run: Run) -> Value | None:
    if isinstance(op, (ast.Mult, ast.Add, ast.Sub, ast.MatMult)):
        return product([left, right])
    by_number = isinstance(op, ast.Div) and isinstance(right, Const)
    return product([left]) if by_number else None  # by its own norm, it carries none


@watches
def _of_torch(function: External, call: Call, run: Run) -> Value | None:
    name = function.name
    if not name.startswith("torch."):
        return None
    if name.endswith("autograd.backward"):
        return backward_from(call, None, run)
    if name.endswith("autograd.grad"):
        scaled = [p for v in call.all() for p in v.training_objects() if isinstance(p, Scaled)]
        if not scaled:
            return None
        run.emit(e.OPAQUE, call.node, scaler=scaled[0].scaler)
        return Carried(scaled[0].scaler)
    return product(call.all()) if function.last in _SAME else None
