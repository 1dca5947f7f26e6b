"""Who stands in whom, and what names are set to, in one file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeVar

from halfstep.rules.source import FunctionNode
from halfstep.rules.syntax import dotted, inside, targets

Node = TypeVar("Node", bound=ast.AST)
_MARKS = (ast.expr_context, ast.operator, ast.unaryop, ast.cmpop, ast.boolop)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Scopes:
    """Parents, functions and assignments of a tree; each is looked up when first asked for."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._parents: dict[ast.AST, ast.AST] = {}
        self._nodes: dict[type[ast.AST], list[ast.AST]] = {}
        self._index()
        self._assigned: dict[ast.AST, dict[str, list[ast.expr]]] = {}

    def _index(self) -> None:
        """One walk for all that is asked later."""
        parents, nodes = self._parents, self._nodes
        waiting: list[ast.AST] = [self._tree]
        while waiting:
            node = waiting.pop()
            nodes.setdefault(type(node), []).append(node)
            for field in node._fields:
                value = getattr(node, field, None)
                children = value if isinstance(value, list) else [value]
                for child in children:
                    if isinstance(child, ast.AST) and not isinstance(child, _MARKS):
                        parents[child] = node
                        waiting.append(child)

    def nodes(self, kind: type[Node]) -> list[Node]:
        """All nodes of one class."""
        return self._nodes.get(kind, [])  # type: ignore[return-value]

    def parents(self, node: ast.AST) -> Iterator[ast.AST]:
        """What `node` stands in, innermost first."""
        found = self._parents.get(node)
        while found is not None:
            yield found
            found = self._parents.get(found)

    def function(self, node: ast.AST) -> FunctionNode | ast.Module:
        """The innermost function around `node`, or the file."""
        return next((p for p in self.parents(node) if isinstance(p, _FUNCTIONS)), self._tree)

    def functions(self) -> list[FunctionNode | ast.Module]:
        """All functions, and the file itself."""
        plain, coroutines = self.nodes(ast.FunctionDef), self.nodes(ast.AsyncFunctionDef)
        found: list[FunctionNode | ast.Module] = [self._tree]
        return found + list(plain) + list(coroutines)

    def assigned(self, name: str, where: ast.AST) -> list[ast.expr]:
        """What `name` is set to in the innermost scope around `where` that sets it."""
        method = name.startswith("self.")
        for scope in (where, *self.parents(where)):
            if method and isinstance(scope, ast.ClassDef):
                return [
                    value
                    for item in scope.body
                    if isinstance(item, _FUNCTIONS)
                    for value in self._in(item).get(name, ())
                ]
            if not method and isinstance(scope, (*_FUNCTIONS, ast.Module)):
                found = self._in(scope).get(name, [])
                if found or name in _arguments(scope):
                    return found
        return []

    def default(self, name: str, where: ast.AST) -> ast.expr | None:
        """The default of an argument of the function around `where`."""
        scope = self.function(where)
        if isinstance(scope, ast.Module):
            return None
        spec = scope.args
        positional = [*spec.posonlyargs, *spec.args]
        pairs = dict(zip(reversed(positional), reversed(spec.defaults), strict=False))
        pairs |= {a: d for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if d}
        return next((d for a, d in pairs.items() if a.arg == name), None)

    def is_argument(self, name: str, where: ast.AST) -> bool:
        """Whether `name` is an argument of the function around `where`."""
        return name in _arguments(self.function(where))

    def _in(self, scope: ast.AST) -> dict[str, list[ast.expr]]:
        if scope not in self._assigned:
            found: dict[str, list[ast.expr]] = {}
            for node in inside(getattr(scope, "body", [])):
                value = getattr(node, "value", None)
                if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and value:
                    for target, given in _pairs(node, value):
                        if name := dotted(target):
                            found.setdefault(name, []).append(given)
            self._assigned[scope] = found
        return self._assigned[scope]


def _pairs(node: ast.AST, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    found = targets(node)
    if isinstance(value, ast.Tuple) and len(value.elts) == len(found) > 1:
        return list(zip(found, value.elts, strict=True))
    return [(target, value) for target in found]


def _arguments(scope: ast.AST) -> set[str]:
    if not isinstance(scope, _FUNCTIONS):
        return set()
    spec = scope.args
    listed = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs, spec.vararg, spec.kwarg]
    return {a.arg for a in listed if a is not None}
