"""Parameters of modules and their gradients, and what a program does to these by hand.

A clip by hand is followed from the norm of gradients, through whatever is computed from it, to a
number divided by it: gradients that are multiplied by that are clipped. A factor that has nothing
to do with their norm is no clip.
"""

from __future__ import annotations

import ast
from collections.abc import Hashable
from typing import Any

from halfstep.check.source.inventory import last_name
from halfstep.check.torch_models.norms import (
    MEASURES,
    SAME,
    Coefficient,
    Norm,
    measured,
    new,
    of_measure,
)
from halfstep.check.torch_models.scales import ScaleRead
from halfstep.check.torch_models.table import functions, operators, watches
from halfstep.check.values.base import NOBODY, Const, External, Models, Unknown, Value
from halfstep.check.values.call import Call, Given
from halfstep.check.values.containers import flat
from halfstep.check.values.regions import Part, roots, some
from halfstep.check.values.run import Run
from halfstep.rules import events as e

_ASKS_FINITE = frozenset(["isnan", "isinf", "isfinite"])
_NOISE = frozenset(["randn", "randn_like", "normal", "normal_", "rand", "rand_like"])
_NO_EDIT = frozenset(["detach_", "requires_grad_"])
_HOOKS = frozenset(["register_hook", "register_post_accumulate_grad_hook"])
IN_PLACE = frozenset(
    ["copy_", "add_", "sub_", "mul_", "div_", "lerp_", "fill_", "zero_", "normal_", "uniform_"]
)
CLAMPS = frozenset(["clamp", "clip", "clamp_", "clip_"])


class Params(Value):
    """Parameters of some modules, one or many."""

    __slots__ = ("of",)
    answers_methods = True
    has_parameters_of_its_own = True
    stands_for_all = True

    def __init__(self, of: Models) -> None:
        self.of = of

    @property
    def models(self) -> Models:  # type: ignore[override]
        return self.of

    @property
    def question(self) -> Hashable:
        return ("parameters", self.of)

    def attribute(self, name: str, run: Run) -> Value:
        if name == "grad":
            return Grad(self.of)
        return self if name == "data" else super().attribute(name, run)

    def item(self, index: Value, node: ast.Subscript, run: Run) -> Value:
        return self

    def unpacked(self, index: int, run: Run) -> Value:
        return self if index else super().unpacked(index, run)  # the parameter, after its name

    def method(self, name: str, call: Call, run: Run) -> Value | None:
        values = call.all()
        if name == "requires_grad_":
            run.state.set_frozen(self.of, bool(values) and values[0].truth is False)
        if name in _HOOKS and values:
            run.state.hooks.append(_Hook(self, values[0], call))
        elif name in IN_PLACE:
            _changed_in_place(self, name, values, call, run)
            return self
        models = self.of.union(*(v.models for v in values))
        return run.unknown(models=models).made_by(f".{name}()", [self, *values])

    def assign(self, name: str, value: Value, target: ast.Attribute, run: Run) -> None:
        if name == "requires_grad":
            run.state.set_frozen(self.of, value.truth is False)
        if name == "data":
            run.emit(e.WEIGHTS, target, facts={"models": self.of})
        if name == "data" and self.of & value.models:
            _blended(self, value.models, target, run)
        if name == "grad" and value.as_gradient_of(self.of, target, run):
            return
        if name == "grad" and isinstance(value, Clipped):
            _record_clip(target, self.of, value.limits, run)
        elif name == "grad":
            _record_edit(target, _how_assigned(target, value), self.of, run)

    def augment(self, name: str, node: ast.AugAssign, value: Value, run: Run) -> bool:
        if name != "grad":
            return False
        divides = isinstance(node.op, ast.Div)
        if isinstance(node.op, (ast.Mult, ast.Div)) and _limits(divides, [value]):
            _record_clip(node, self.of, [], run)
        else:
            _record_edit(node, _how_operated(node, value), self.of, run)
        return True

    def holds_weights(self, run: Run) -> bool:
        return True

    def kept_in(self, place: str, append: ast.Attribute, run: Run) -> Value:
        if not run.state.frame.chosen:
            return self
        return Params(some(self.of, f"in {ast.unparse(append)}"))

    def likeness(self, depth: int) -> str:
        return "parameters"


class _Hook:
    """A function that the program has registered on tensors; run after a scaled backward.

    Args:
        of: The parameters.
        function: What is run.
        call: The registration.
    """

    def __init__(self, of: Params, function: Value, call: Call) -> None:
        self._of = of
        self._function = function
        self._call = call
        self._is_done = False

    def __call__(self, run: Run) -> None:
        """Record what it does, the first time."""
        if self._is_done:
            return
        self._is_done = True
        given: Value = Grad(self._of.of)
        if "post_accumulate" in ast.unparse(self._call.node.func):
            given = self._of
        result = run.apply(self._function, Given(self._call.node, [given]))
        how = {Cleaned: "nan", Clipped: "hook", Added: "add"}.get(type(result))
        if how is not None:
            _record_edit(self._call.node, how, self._of.of, run)


def _changed_in_place(
    weights: Params, method: str, values: list[Value], call: Call, run: Run
) -> None:
    """``p.copy_(q)``, ``p.lerp_(q, 0.01)``: weights, or a moving average of others."""
    run.emit(e.WEIGHTS, call.node, facts={"models": weights.of})
    others = NOBODY.union(*(v.models for v in values))
    if method in ("lerp_", "add_") or weights.of & others:  # a copy is no average
        _blended(weights, others, call.node, run)


def _blended(weights: Params, others: Models, node: ast.AST, run: Run) -> None:
    """Record weights that move towards those of a model in training."""
    trained = roots(others) & _trained(run) - roots(weights.of)
    is_free = not run.state.frame.average and not roots(weights.of) & _trained(run)
    if trained and is_free:
        name = f"average@{getattr(node, 'lineno', 0)}"
        run.emit(e.EMA, run.site(node), model=name, facts={"models": frozenset(trained)})


def _trained(run: Run) -> Models:
    owned = (roots(of) for of in run.state.optimizers.values() if of)
    return NOBODY.union(frozenset(run.state.trained), *owned)


class Grad(Value):
    """Gradients of some modules."""

    __slots__ = ("of",)
    answers_methods = True
    stands_for_all = True

    def __init__(self, of: Models) -> None:
        self.of = of

    @property
    def question(self) -> Hashable:
        return ("gradients", self.of)

    @property
    def truth(self) -> bool | None:
        return None

    def is_none(self, run: Run) -> bool | None:
        present = run.state.has_gradients(self.of)
        return None if present is None else not present

    def attribute(self, name: str, run: Run) -> Value:
        return self

    def item(self, index: Value, node: ast.Subscript, run: Run) -> Value:
        return self

    def assign_item(self, index: Value, value: Value, target: ast.Subscript, run: Run) -> None:
        _record_edit(target, _how_assigned(target, value), self.of, run)

    def method(self, name: str, call: Call, run: Run) -> Value | None:
        known = self.passed_to(name, call, call.all(), run)
        if known is not None:
            return known
        if name in _NO_EDIT:
            return self
        if name.endswith("_") and not name.endswith("__"):
            _record_edit(call.node, _how_called(name, call), self.of or None, run)
        elif name == "nan_to_num":
            return Cleaned(self.of)
        elif name in ("data", "detach", "view", "flatten"):
            return self
        return run.unknown()

    def passed_to(self, name: str, call: Call, values: list[Value], run: Run) -> Value | None:
        """What a method or a function makes of the gradients; `values` are its other arguments."""
        if name in CLAMPS and not only_signs(values):
            if name.endswith("_"):
                _record_clip(call.node, self.of, values, run)
                return self
            return Clipped(self.of, values)
        if name == "zero_":
            _record_edit(call.node, "zero", self.of or None, run)
            return self
        if name in ("mul_", "div_") and _limits(name == "div_", values):
            _record_clip(call.node, self.of, values, run)
            return self
        return measured(self.of, call.node, run) if name in MEASURES else None


class Cleaned(Grad):
    """Gradients whose NaN or inf were replaced: an edit, once they are put back."""

    __slots__ = ()


class Added(Grad):
    """Gradients and a number that carries no scale."""

    __slots__ = ()


class Clipped(Grad):
    """Gradients as they are after a clip, once they are put back."""

    __slots__ = ("limits",)

    def __init__(self, of: Models, limits: list[Value]) -> None:
        super().__init__(of)
        self.limits = limits


# Functions and operators


@watches
def _of_gradients(function: External, call: Call, run: Run) -> Value | None:
    """``torch.norm(grad)``, ``torch._foreach_mul_(grads, factor)``."""
    name = function.last
    if name == "where":
        return _chosen(call)
    if name not in MEASURES | SAME | CLAMPS and not name.startswith("_foreach_"):
        return None
    values = list(flat(call.all()))
    first = values[0] if values else None
    if isinstance(first, Grad) and name == "_foreach_copy_":
        return _copied(first, values[1:], call, run)
    if isinstance(first, Params):
        _changed_in_place(first, name.removeprefix("_foreach_"), values[1:], call, run)
    if isinstance(first, Grad):
        return first.passed_to(name.removeprefix("_foreach_"), call, values[1:], run)
    return of_measure(name, values, run)


def _chosen(call: Call) -> Value | None:
    """``torch.where(gradient > limit, limit, gradient)``: clipped, or cleaned of NaN."""
    grads = [value for value in call.given()[1:] if isinstance(value, Grad)]
    if not grads:
        return None
    if _calls(call.node.args[0], _ASKS_FINITE):
        return Cleaned(grads[0].of)
    return Clipped(grads[0].of, [])


def _copied(gradients: Grad, values: list[Value], call: Call, run: Run) -> Value:
    """``torch._foreach_copy_(gradients, others)``: others that were taken by hand count."""
    taken = next((v for v in values if v.as_gradient_of(gradients.of, call.node, run)), None)
    if taken is None:
        _record_edit(call.node, "set", gradients.of, run)
    return gradients


@functions("*.nan_to_num")
def _nan_to_num(call: Call, run: Run) -> Value:
    value, out = call.first(), call.named().get("out")
    if isinstance(out, Grad):
        _record_edit(call.node, "nan", out.of or None, run)
    return Cleaned(value.of) if isinstance(value, Grad) else value


@functions("*.nan_to_num_")
def _nan_to_num_in_place(call: Call, run: Run) -> Value:
    value = call.first()
    if isinstance(value, Grad):
        _record_edit(call.node, "nan", value.of or None, run)
    return value


@operators
def _with_measure(op: ast.operator, left: Value, right: Value, run: Run) -> Value | None:
    """What an operator makes of gradients, of their norm, and of a number divided by it."""
    sides = (left, right)
    if any(isinstance(side, Norm) and side.unscaled for side in sides):
        return None
    if any(side.models for side in sides):  # a loss
        return None
    measures = all(isinstance(side, (Norm, Coefficient)) for side in sides)
    if measures and isinstance(op, (ast.Mult, ast.Div)):  # a ratio, the same at any scale
        return None
    if isinstance(op, ast.Div) and isinstance(right, Norm):
        return Clipped(left.of, []) if isinstance(left, Grad) else new(Coefficient, run)
    for one, other in ((left, right), (right, left)):
        adds = isinstance(op, (ast.Add, ast.Sub)) and isinstance(other, Const) and other.value
        if isinstance(one, Grad) and adds:
            return Added(one.of)
        if isinstance(one, Grad) and isinstance(other, Coefficient):
            return Clipped(one.of, []) if isinstance(op, ast.Mult) else None
        if isinstance(one, (Norm, Coefficient)):
            return new(Coefficient if _inverts(op, right) else type(one), run, one)
    return None


def _limits(divides: bool, values: list[Value]) -> bool:
    """Whether gradients that are multiplied by, or divided by, `values` are clipped so."""
    kind = Norm if divides else Coefficient
    return any(isinstance(value, kind) for value in values)


def _inverts(op: ast.operator, right: Value) -> bool:
    power = right.value if isinstance(op, ast.Pow) and isinstance(right, Const) else 0
    return isinstance(power, (int, float)) and power < 0


def only_signs(values: list[Value]) -> bool:
    """Whether a limit is 0, which is the same at any scale."""
    return bool(values) and all(isinstance(v, Const) and not v.value for v in values)


# Edits and clips by hand


def _record_clip(node: ast.AST, models: Models, limits: list[Value], run: Run) -> None:
    facts: dict[str, Any] = {"how": "hand", "models": models or None}
    if any(isinstance(v, ScaleRead) and not v.inverse for v in limits):
        facts["max_norm_scaled"] = True
    run.emit(e.CLIP, node, facts=facts)


def _record_edit(node: ast.AST, how: str, models: Models | None, run: Run) -> None:
    frame = run.state.frame
    chosen = frame.chosen > (frame.loops[-1].chosen if frame.loops else 0)
    partly = chosen or any(isinstance(of, Part) for of in models or ())
    if how == "zero" and not partly:  # under a condition, it may be one layer's alone
        run.emit(e.ZERO_GRAD, node, facts={"models": models})
        return
    run.emit(e.EDIT, node, facts={"how": how, "models": models})


def _how_called(method: str, call: Call) -> str:
    """How ``gradient.method_(...)`` edits."""
    known = {"nan_to_num_": "nan", "zero_": "zero"}.get(method)
    if known is not None:
        return known
    if any(isinstance(a, ScaleRead) for a in call.given()):
        return "unscale"
    if method in ("mul_", "div_"):
        return "multiply"
    if method == "masked_fill_" and _calls(call.node, _ASKS_FINITE):
        return "nan"
    added = method in ("add_", "sub_") and _is_foreign(call.node, call.given())
    return "add" if added else "set"


def _how_operated(node: ast.AugAssign, value: Value) -> str:
    """How ``p.grad op= value`` edits."""
    if isinstance(node.op, (ast.Mult, ast.Div)):
        return "unscale" if isinstance(value, ScaleRead) else "multiply"
    added = isinstance(node.op, (ast.Add, ast.Sub)) and _is_foreign(node.value, [value])
    return "add" if added else "set"


def _how_assigned(target: ast.expr, value: Value) -> str:
    """How ``p.grad = value`` and ``p.grad[mask] = value`` edit."""
    if isinstance(value, Cleaned):
        return "nan"
    if isinstance(value, Unknown) and value.is_made_by("torch.zeros_like", "torch.zeros"):
        return "zero"
    if isinstance(target, ast.Subscript) and _calls(target.slice, _ASKS_FINITE):
        return "nan"
    return "zero" if isinstance(value, Const) and value.value is None else "set"


def _is_foreign(node: ast.expr, values: list[Value]) -> bool:
    """Whether what is added surely carries no loss scale: noise, or the parameter itself."""
    return any(isinstance(v, Params) for v in values) or _calls(node, _NOISE)


def _calls(node: ast.AST, names: frozenset[str]) -> bool:
    calls = (n for n in ast.walk(node) if isinstance(n, ast.Call))
    return any(last_name(call.func) in names for call in calls)
