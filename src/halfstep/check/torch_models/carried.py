"""Gradients of representations: kept by hand, they bring the scale into the next backward.

A model too large for one batch is run twice: once for its representations, whose loss gives the
gradients of these, and once in pieces, whose "loss" is the product of the two.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfstep.check.torch_models.gradients import CLAMPS, Grad, only_signs
from halfstep.check.torch_models.scales import Scaled, ScaleRead, backward
from halfstep.check.torch_models.table import attributes, operators, watches
from halfstep.check.values.base import NOBODY, Const, External, Models, Unknown, Value
from halfstep.check.values.call import Call
from halfstep.check.values.containers import flat
from halfstep.check.values.regions import roots
from halfstep.check.values.run import Run
from halfstep.rules import events as e
from halfstep.rules.events import Place

# Methods and functions of torch after which the numbers still carry the scale.
_SAME_WORDS = """
    chunk split view reshape flatten detach clone float double to cuda cpu unsqueeze squeeze
    contiguous transpose permute t sum mean unbind mul dot inner einsum matmul cat stack tensordot
    vdot add
"""
_SAME = frozenset(_SAME_WORDS.split())
_WITHOUT_SCALE = frozenset(["sign", "sgn", "argmax", "normalize", "isfinite", "isnan", "item"])


class Carried(Value):
    """A gradient that is no parameter's and carries a scale: of a representation, kept by hand.

    Attributes:
        scaler: Whose scale it is.
        place: Where it was taken.
    """

    __slots__ = ("place", "scaler")
    answers_methods = True
    carries_scale = True

    def __init__(self, scaler: str, place: Place | None = None) -> None:
        self.scaler = scaler
        self.place = place

    @property
    def truth(self) -> bool | None:
        return None

    def item(self, index: Value, node: ast.Subscript, run: Run) -> Value:
        return self

    def unpacked(self, index: int, run: Run) -> Value:
        return self

    def iterate(self, rounds: int, run: Run) -> Iterator[Value]:
        return iter([self] * rounds)

    def as_gradient_of(self, models: Models, target: ast.AST, run: Run) -> bool:
        backward(target, models, self.scaler, run)
        return True

    def method(self, name: str, call: Call, run: Run) -> Value | None:
        values = call.all()
        if name in _SAME:
            return self
        if name in CLAMPS and not only_signs(values):
            return Limited(self.scaler, self.place)
        if self.place is None or name in _WITHOUT_SCALE:
            return run.unknown()
        return Penalty(run.state.module.place(call.node), NOBODY, run)


class Limited(Carried):
    """The same after a limit was put on it, which is then a limit on gradients times the scale."""

    __slots__ = ()

    def as_gradient_of(self, models: Models, target: ast.AST, run: Run) -> bool:
        super().as_gradient_of(models, target, run)
        run.emit(e.EDIT, target, facts={"how": "limit", "models": models})
        return True


class Taken(Unknown):
    """Gradients that ``torch.autograd.grad`` took of a loss without a scale.

    Attributes:
        place: Where.
    """

    __slots__ = ("place",)

    def __init__(self, place: Place, models: Models, run: Run) -> None:
        super().__init__(("new", run.fresh()), "", models)
        self.place = place

    def item(self, index: Value, node: ast.Subscript, run: Run) -> Value:
        return self

    def unpacked(self, index: int, run: Run) -> Value:
        return self

    def iterate(self, rounds: int, run: Run) -> Iterator[Value]:
        return iter([self] * rounds)

    def as_gradient_of(self, models: Models, target: ast.AST, run: Run) -> bool:
        run.emit(e.BACKWARD, self.place, facts={"models": models})
        return True


class Penalty(Unknown):
    """A number made of gradients that carry a scale.

    Attributes:
        place: Where the gradients were taken.
    """

    __slots__ = ("place",)
    carries_scale = True

    def __init__(self, place: Place, models: Models, run: Run) -> None:
        super().__init__(("new", run.fresh()), "", models)
        self.place = place

    def method(self, name: str, call: Call, run: Run) -> Value | None:
        call.evaluate_all()
        return run.unknown() if name in ("item", "tolist", "detach") else self


@attributes("*.grad")
def _gradient(owner: Unknown, run: Run) -> Value | None:
    """Of a parameter; of what is no model, it carries the scale of the last backward."""
    state = run.state
    owned = (roots(of) for of in state.optimizers.values() if of)
    if any(owner.root in of for of in owned):
        return Grad(frozenset([owner.region])) if owner.path else None
    if state.carrying is None or state.module.is_model(owner.name):
        return None
    return Carried(state.carrying, state.carried_from)


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


def _penalty(values: list[Value], run: Run) -> Penalty | None:
    """A number made of `values`, some of which are gradients that carry a scale."""
    inside = list(flat(values))
    places = [part.place for part in inside if isinstance(part, (Carried, Penalty)) and part.place]
    models = NOBODY.union(*(value.models for value in values))
    return Penalty(places[0], models, run) if places else None


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
    sides = [left, right]
    if not left.carries_scale and not right.carries_scale:
        return None
    models = NOBODY.union(*(side.models for side in sides))
    if any(isinstance(side, ScaleRead) for side in sides):  # the scale is taken out again
        return run.unknown(models=models)
    ratio = isinstance(op, ast.Div) and left.carries_scale and right.carries_scale
    if any(isinstance(side, Penalty) for side in sides) and not ratio:
        return _penalty(sides, run)
    if isinstance(op, ast.Div) and left.carries_scale and right.carries_scale:
        return run.unknown(models=models)  # a ratio
    both = all(isinstance(side, Carried) for side in sides)
    if isinstance(op, ast.Pow) or (both and isinstance(op, ast.Mult)):
        return _penalty(sides, run)
    if isinstance(op, (ast.Add, ast.Sub)):
        return _penalty(sides, run) if models else product(sides)
    if isinstance(op, (ast.Mult, ast.MatMult)):
        return product(sides)
    by_number = isinstance(op, ast.Div) and isinstance(right, Const)
    return product([left]) if by_number else None  # by its own norm, it carries none


def _has_scale(value: Value) -> bool:
    return isinstance(value, (Scaled, Carried, Penalty))


@watches
def _of_torch(function: External, call: Call, run: Run) -> Value | None:
    name = function.name
    if not name.startswith(("torch.", "F.")):
        return None
    if name.endswith("autograd.backward"):
        return backward_from(call, None, run)
    if name.endswith("autograd.grad"):
        scaled = [p for v in call.all() for p in v.training_objects() if isinstance(p, Scaled)]
        if not scaled:
            models = NOBODY.union(*(v.models for v in call.all()))
            return Taken(run.state.module.place(call.node), models, run)
        run.emit(e.OPAQUE, call.node, scaler=scaled[0].scaler)
        return Carried(scaled[0].scaler, run.state.module.place(call.node))
    if function.last in _WITHOUT_SCALE or not any(map(_has_scale, flat(call.all()))):
        return None
    made = product(call.all()) if function.last in _SAME else None
    return made or _penalty(call.all(), run)
