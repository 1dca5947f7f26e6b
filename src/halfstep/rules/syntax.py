"""Small questions about syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def children(node: ast.AST) -> list[ast.AST]:
    """What stands directly in `node`: `ast.iter_child_nodes`, faster."""
    found: list[ast.AST] = []
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, ast.AST):
            found.append(value)
        elif value.__class__ is list:
            found += [item for item in value if isinstance(item, ast.AST)]
    return found


def inside(nodes: ast.AST | Iterable[ast.AST]) -> Iterator[ast.AST]:
    """`nodes` and all below them in the order of the text, functions defined there left out."""
    waiting = [nodes] if isinstance(nodes, ast.AST) else list(nodes)
    waiting.reverse()
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, _SCOPES):
            waiting.extend(reversed(children(node)))


def body_of(scope: ast.AST) -> list[ast.stmt]:
    """Statements of a function, a class or a file."""
    return list(getattr(scope, "body", ()))


def calls_in(nodes: ast.AST | Iterable[ast.AST]) -> Iterator[ast.Call]:
    """Calls in `nodes`, functions defined there left out."""
    return (node for node in inside(nodes) if isinstance(node, ast.Call))


def last(node: ast.AST) -> str:
    """``c`` of ``a.b.c``, ``a.b.c()`` and ``c``; empty for anything else."""
    if isinstance(node, ast.Call):
        return last(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def dotted(node: ast.AST) -> str:
    """``a.b.c`` where `node` is just that; empty for anything else."""
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return node.id if isinstance(node, ast.Name) else ""


def receiver(call: ast.Call) -> ast.expr | None:
    """``x`` of ``x.method()``."""
    return call.func.value if isinstance(call.func, ast.Attribute) else None


def argument(call: ast.Call, position: int | None, *names: str) -> ast.expr | None:
    """An argument by position or by one of its names."""
    for keyword in call.keywords:
        if keyword.arg in names:
            return keyword.value
    if position is None or position >= len(call.args):
        return None
    if any(isinstance(node, ast.Starred) for node in call.args[: position + 1]):
        return None
    return call.args[position]


def is_constant(node: ast.AST | None, value: object) -> bool:
    """Whether `node` is written as the constant `value`."""
    return isinstance(node, ast.Constant) and node.value is value


def number(node: ast.AST | None) -> float | None:
    """The value of a number, its sign in front included."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = number(node.operand)
        return -value if value is not None and isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return None if isinstance(node.value, bool) else float(node.value)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        base, power = number(node.left), number(node.right)
        return base**power if base and power is not None and abs(power) < 64 else None
    return None


def targets(node: ast.AST) -> list[ast.expr]:
    """What a statement assigns to, tuples taken apart."""
    if isinstance(node, ast.Assign):
        found = node.targets
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.NamedExpr, ast.For)):
        found = [node.target]
    elif isinstance(node, ast.withitem):
        found = [node.optional_vars] if node.optional_vars else []
    else:
        found = []
    return [leaf for target in found for leaf in _leaves(target)]


def _leaves(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, (ast.Tuple, ast.List)):
        for item in target.elts:
            yield from _leaves(item)
    else:
        yield target.value if isinstance(target, ast.Starred) else target


def reads(nodes: ast.AST | Iterable[ast.AST], name: str) -> bool:
    """Whether the variable or attribute path `name` is read in `nodes`."""
    return any(
        isinstance(node, (ast.Name, ast.Attribute))
        and isinstance(node.ctx, ast.Load)
        and dotted(node) == name
        for node in inside(nodes)
    )
