"""Clips that a program writes itself: by the norm that it measures, or by a limit.

What is followed is the norm of gradients, through whatever is computed from it, and a number
divided by it: gradients that are multiplied by that are clipped. A factor that has nothing to do
with their norm is none.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from halfstep.check.interpreter.arguments import Call
from halfstep.check.values.kinds import (
    Clipped,
    Coefficient,
    Const,
    Grad,
    Models,
    Norm,
    Repeated,
    ScaleRead,
    Sequence,
    Value,
)
from halfstep.rules import events as e

if TYPE_CHECKING:
    from halfstep.check.interpreter.machine import Machine

_MEASURES_WORDS = """
    norm vector_norm matrix_norm square pow abs get_total_norm _foreach_norm
"""
_MEASURES = frozenset(_MEASURES_WORDS.split())
_SAME_WORDS = """
    sqrt stack sum max min mean cat item float clamp clamp_ clamp_max clip minimum where tensor to
    detach cpu cuda clone square pow norm vector_norm abs mul add double rsqrt
"""
_SAME = frozenset(_SAME_WORDS.split())
_CLAMPS = frozenset(["clamp", "clip", "clamp_", "clip_"])


class Clips:
    """Follows norms and records clips for a `Machine`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def of_function(self, name: str, call: Call) -> Value | None:
        """What a function makes of gradients or of their norm; ``None`` if neither is given."""
        if name not in _MEASURES | _SAME | _CLAMPS and not name.startswith("_foreach_"):
            return None
        values = list(_all_of(call.all()))
        first = values[0] if values else None
        if isinstance(first, Grad):
            return self.of_gradient(first, name.removeprefix("_foreach_"), call, values[1:])
        return self.of_measure(name, values)

    def of_gradient(
        self, gradient: Grad, method: str, call: Call, values: list[Value]
    ) -> Value | None:
        """What a method or a function makes of gradients."""
        if method in _CLAMPS and not _only_signs(values):
            if method.endswith("_"):
                self.record(call.node, gradient.of, values)
                return gradient
            return Clipped(gradient.of, values)
        if method in ("mul_", "div_") and self.limits(method == "div_", values):
            self.record(call.node, gradient.of, values)
            return gradient
        return self._new(Norm) if method in _MEASURES else None

    def of_measure(self, name: str, values: list[Value]) -> Value | None:
        """What becomes of a norm, or of a number divided by it."""
        if any(isinstance(v, ScaleRead) for v in values):
            if name.endswith("_") and isinstance(values[0], Norm):
                values[0].unscaled = True
            return None
        if name not in _SAME | _MEASURES or any(isinstance(v, Norm) and v.unscaled for v in values):
            return None
        kinds = [type(v) for v in values]
        if Coefficient in kinds or (name == "rsqrt" and Norm in kinds):
            return self._new(Coefficient)
        return next((v for v in values if isinstance(v, Norm)), None)

    def of_operator(self, op: ast.operator, left: Value, right: Value) -> Value | None:
        """What an operator makes of gradients, of their norm, and of a number divided by it."""
        if any(isinstance(side, Norm) and side.unscaled for side in (left, right)):
            return None
        if any(side.models for side in (left, right)):  # a loss
            return None
        measures = all(isinstance(side, (Norm, Coefficient)) for side in (left, right))
        if measures and isinstance(op, (ast.Mult, ast.Div)):  # a ratio, the same at any scale
            return None
        if isinstance(op, ast.Div) and isinstance(right, Norm):
            return Clipped(left.of, []) if isinstance(left, Grad) else self._new(Coefficient)
        for one, other in ((left, right), (right, left)):
            if isinstance(one, Grad) and isinstance(other, Coefficient):
                return Clipped(one.of, []) if isinstance(op, ast.Mult) else None
            if isinstance(one, (Norm, Coefficient)):
                return self._new(Coefficient if _inverts(op, right) else type(one))
        return None

    def limits(self, divides: bool, values: list[Value]) -> bool:
        """Whether gradients that are multiplied by, or divided by, `values` are clipped so."""
        kind = Norm if divides else Coefficient
        return any(isinstance(value, kind) for value in values)

    def record(self, node: ast.AST, models: Models, limits: list[Value]) -> None:
        """A clip by hand."""
        facts: dict[str, Any] = {"how": "hand", "models": models or None}
        if any(isinstance(v, ScaleRead) and not v.inverse for v in limits):
            facts["max_norm_scaled"] = True
        self._machine.emit(e.CLIP, node, facts=facts)

    def _new(self, kind: type[Norm | Coefficient]) -> Value:
        return kind(("new", self._machine.path.fresh()), "norm" if kind is Norm else "")


def _inverts(op: ast.operator, right: Value) -> bool:
    power = right.value if isinstance(op, ast.Pow) and isinstance(right, Const) else 0
    return isinstance(power, (int, float)) and power < 0


def _only_signs(values: list[Value]) -> bool:
    """Whether a limit is 0, which is the same at any scale."""
    return bool(values) and all(isinstance(v, Const) and not v.value for v in values)


def _all_of(values: list[Value]) -> Iterator[Value]:
    for value in values:
        if isinstance(value, Sequence):
            yield from _all_of(value.items)
        elif isinstance(value, Repeated):
            yield from _all_of([value.item])
        else:
            yield value
