"""What comes of a scaler: a scaled loss, the scale as a number, tests for a skipped step."""

from __future__ import annotations

import ast

from halfstep.check.torch_models.table import operators, watches
from halfstep.check.values.base import External, Models, Value
from halfstep.check.values.call import Call
from halfstep.check.values.run import Run
from halfstep.rules import events as e

_FINITE = frozenset(["isfinite", "isnan", "isinf"])
_SAME_WORDS = """
    item detach cpu clone float float64 double int bool sum any all max min values items tolist list
    tuple stack cat tensor
"""
_SAME = frozenset(_SAME_WORDS.split())


class Scaled(Value):
    """A loss multiplied by a scale."""

    __slots__ = ("models", "scaler")
    answers_methods = True
    is_training = True

    def __init__(self, scaler: str, models: Models) -> None:
        self.scaler = scaler
        self.models = models

    def attribute(self, name: str, run: Run) -> Value:
        return self

    def item(self, index: Value, node: ast.Subscript, run: Run) -> Value:
        return self

    def method(self, name: str, call: Call, run: Run) -> Value | None:
        call.evaluate_all()
        if name == "backward":
            backward(call.node, self.models, self.scaler, run)
            return run.unknown()
        return run.unknown() if name in ("item", "tolist") else self


class ScaleRead(Value):
    """A scale as a number; `inverse` after a division by it."""

    __slots__ = ("inverse", "scaler")

    def __init__(self, scaler: str, inverse: bool = False) -> None:
        self.scaler = scaler
        self.inverse = inverse


class SkipTest(Value):
    """A comparison of scales, or the outcome of halfstep's scaler: was the update skipped?

    Attributes:
        num_steps: Steps before it was made: a later step is not what it speaks of.
        scales: Whether both sides are the scale.
        window: Backward passes before it, where it was made ahead of the step that it speaks of:
            of the gradients, which decide whether that step is skipped.
    """

    __slots__ = ("num_steps", "operator", "scaler", "scales", "window")
    answers_methods = True
    stands_for_all = True
    tells_of_skip = True

    def __init__(
        self,
        scaler: str | None,
        operator: str,
        num_steps: int,
        scales: bool = False,
        window: int | None = None,
    ) -> None:
        self.scaler = scaler
        self.operator = operator
        self.num_steps = num_steps
        self.scales = scales
        self.window = window

    @property
    def truth(self) -> bool | None:
        return None

    def negated(self) -> SkipTest:
        """The negated test."""
        name = f"not {self.operator}"
        return SkipTest(self.scaler, name, self.num_steps, self.scales, self.window)

    def attribute(self, name: str, run: Run) -> Value:
        return self

    def item(self, index: Value, node: ast.Subscript, run: Run) -> Value:
        return self

    def method(self, name: str, call: Call, run: Run) -> Value | None:
        call.evaluate_all()
        return of_finite(name, [self, *call.all()], run) or self

    def speaks_of_last_step(self, run: Run) -> bool:
        """Whether the last step is the one that the test is about."""
        state = run.state
        if self.window is None:
            return self.num_steps == state.num_steps
        in_window = self.window == state.num_backwards
        return in_window and state.num_steps > state.steps_before_backward


def found(scaler: str | None, run: Run, operator: str = "found") -> SkipTest:
    """A test made of the gradients themselves, mostly before the step."""
    state = run.state
    return SkipTest(scaler, operator, state.num_steps, window=state.num_backwards)


def of_finite(name: str, values: list[Value], run: Run) -> Value | None:
    """What a function makes of a norm or of a test; ``None`` if neither is given."""
    known = next((v for v in values if v.tells_of_skip), None)
    if known is None or isinstance(known, SkipTest):
        return known if name in _SAME else None
    if name in _FINITE:
        return found(None, run, name)
    return known if name in _SAME else None


@watches
def _asks_finite(function: External, call: Call, run: Run) -> Value | None:
    if function.last not in _FINITE | _SAME:
        return None
    return of_finite(function.last, call.given(), run)


@operators
def _with_scale(op: ast.operator, left: Value, right: Value, run: Run) -> Value | None:
    if left.carries_scale or right.carries_scale:
        return None
    for side in (left, right):
        if isinstance(side, Scaled):
            return Scaled(side.scaler, left.models | right.models)
        if isinstance(side, ScaleRead):
            turned = isinstance(op, ast.Div) and side is right
            return ScaleRead(side.scaler, side.inverse is not turned)
    return None


def backward(node: ast.AST, models: Models, scaler: str | None, run: Run) -> None:
    """Record a backward pass of a loss that depends on `models`."""
    models -= run.state.frozen
    run.state.carrying = scaler
    run.state.carried_from = run.state.module.place(node)
    run.emit(e.BACKWARD, node, scaler=scaler, facts={"models": models or None})
    if scaler is not None:
        for hook in run.state.hooks:
            hook(run)
