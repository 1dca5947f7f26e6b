"""Norms of gradients, and numbers divided by one."""

from __future__ import annotations

import ast
from collections.abc import Hashable

from halfstep.check.torch_models.scales import ScaleRead, of_finite
from halfstep.check.values.base import Models, Unknown, Value
from halfstep.check.values.call import Call
from halfstep.check.values.run import Run
from halfstep.rules import events as e

_MEASURES_WORDS = """
    norm vector_norm matrix_norm square pow abs get_total_norm _foreach_norm
"""
MEASURES = frozenset(_MEASURES_WORDS.split())
_SAME_WORDS = """
    sqrt stack sum max min mean cat item float clamp clamp_ clamp_max clip minimum where tensor to
    detach cpu cuda clone square pow norm vector_norm abs mul add double rsqrt
"""
SAME = frozenset(_SAME_WORDS.split())


class _Measure(Unknown):
    __slots__ = ()

    def method(self, name: str, call: Call, run: Run) -> Value | None:
        values = [self, *call.all()]
        made = of_measure(name, values, run) or of_finite(name, values, run)
        return made if made is not None else super().method(name, call, run)


class Norm(_Measure):
    """A norm of gradients: not finite where the step is skipped.

    Attributes:
        measure: The measurement that it comes from.
        unscaled: Whether it was divided by the scale afterwards.
    """

    __slots__ = ("measure", "unscaled")
    tells_of_skip = True

    def __init__(self, key: Hashable, measure: str = "") -> None:
        super().__init__(key, "norm")
        self.measure = measure
        self.unscaled = False


class Coefficient(_Measure):
    """A number divided by a norm of gradients."""

    __slots__ = ()


def new(kind: type[Norm | Coefficient], run: Run, of: Value | None = None) -> Norm | Coefficient:
    """A norm made of another one, or a coefficient."""
    key = ("new", run.fresh())
    if kind is Coefficient:
        return Coefficient(key)
    return Norm(key, of.measure if isinstance(of, Norm) else "")


def measured(models: Models, node: ast.AST, run: Run) -> Norm:
    """The norm of gradients as they are now."""
    name = f"norm@{run.fresh()}"
    run.emit(e.MEASURED, node, model=name, facts={"models": models or None})
    return Norm(("new", run.fresh()), name)


def of_measure(name: str, values: list[Value], run: Run) -> Value | None:
    """What becomes of a norm, or of a number divided by it."""
    if any(isinstance(v, ScaleRead) for v in values):
        if name.endswith("_") and isinstance(values[0], Norm):
            values[0].unscaled = True
        return None
    if name not in SAME | MEASURES or any(isinstance(v, Norm) and v.unscaled for v in values):
        return None
    kinds = [type(v) for v in values]
    if Coefficient in kinds or (name == "rsqrt" and Norm in kinds):
        return new(Coefficient, run)
    return next((v for v in values if isinstance(v, Norm)), None)
