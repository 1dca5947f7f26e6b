"""What a program does to gradients by hand: edits, and how they go with the loss scale."""

from __future__ import annotations

import ast

from halfstep.check.source.inventory import last_name
from halfstep.check.values.kinds import Cleaned, Const, Params, ScaleRead, Value

_ASKS_FINITE = frozenset(["isnan", "isinf", "isfinite"])
_NOISE = frozenset(["randn", "randn_like", "normal", "normal_", "rand", "rand_like"])
_HOW = {"nan_to_num_": "nan", "zero_": "zero"}


def of_method(method: str, node: ast.Call, arguments: list[Value]) -> str:
    """How ``gradient.method_(...)`` edits."""
    if method in _HOW:
        return _HOW[method]
    if any(isinstance(a, ScaleRead) for a in arguments):
        return "unscale"
    if method in ("mul_", "div_"):
        return "multiply"
    if method == "masked_fill_" and _mentions(node, _ASKS_FINITE):
        return "nan"
    return "add" if method in ("add_", "sub_") and is_foreign(node, arguments) else "set"


def of_operator(op: ast.operator, node: ast.expr, value: Value) -> str:
    """How ``p.grad op= value`` edits."""
    if isinstance(op, (ast.Mult, ast.Div)):
        return "unscale" if isinstance(value, ScaleRead) else "multiply"
    added = isinstance(op, (ast.Add, ast.Sub)) and is_foreign(node, [value])
    return "add" if added else "set"


def of_assignment(target: ast.expr, value: Value) -> str:
    """How ``p.grad = value`` and ``p.grad[mask] = value`` edit."""
    if isinstance(value, Cleaned):
        return "nan"
    if isinstance(target, ast.Subscript) and _mentions(target.slice, _ASKS_FINITE):
        return "nan"
    return "zero" if isinstance(value, Const) and value.value is None else "set"


def is_foreign(node: ast.expr, values: list[Value]) -> bool:
    """Whether what is added surely carries no loss scale: noise, or the parameter itself."""
    return any(isinstance(v, Params) for v in values) or _mentions(node, _NOISE)


def _mentions(node: ast.AST, names: frozenset[str]) -> bool:
    calls = (n for n in ast.walk(node) if isinstance(n, ast.Call))
    return any(last_name(call.func) in names for call in calls)
