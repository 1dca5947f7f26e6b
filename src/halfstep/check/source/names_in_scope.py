"""Whether a name means something at a line; a repair must not write one that does not."""

from __future__ import annotations

import ast
from typing import TypeGuard

from halfstep.check.source.module import Module

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def is_known_at(module: Module, line: int, dotted: str) -> bool:
    """Whether `dotted`, as ``scaler`` or ``self.scaler``, is bound for code at `line`.

    Arguments and assignments of the functions around the line count, then those of the file; an
    attribute must be assigned in the class around it.
    """
    around = [node for node in ast.walk(module.tree) if _contains(node, line)]
    first, _, attribute = dotted.partition(".")
    functions = [node for node in around if isinstance(node, _FUNCTIONS)]
    scopes: list[ast.AST] = [*functions, module.tree]
    if not any(first in _bound(scope) for scope in scopes):
        return False
    if not attribute:
        return True
    classes: list[ast.AST] = [node for node in around if isinstance(node, ast.ClassDef)]
    return any(_stores(home, dotted) for home in classes or [module.tree])


def is_set_before(module: Module, line: int, dotted: str) -> bool:
    """Whether `dotted` is known at `line` and surely set by then, as far as the text shows.

    What the innermost scope around the line sets itself, it must set further up; what comes from
    outside was set when the function ran, arguments too.
    """
    if not is_known_at(module, line, dotted):
        return False
    around = [node for node in ast.walk(module.tree) if _contains(node, line)]
    functions = [node for node in around if isinstance(node, _FUNCTIONS)]
    home = functions[-1] if functions else module.tree
    stores = [node.lineno for node in ast.walk(home) if _is_store(node, dotted)]
    return not stores or min(stores) < line


def _is_store(node: ast.AST, dotted: str) -> TypeGuard[ast.expr]:
    named = isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store)
    return named and ast.unparse(node) == dotted


def _contains(node: ast.AST, line: int) -> bool:
    scope = isinstance(node, (*_FUNCTIONS, ast.ClassDef))
    return scope and node.lineno <= line <= (node.end_lineno or 0)  # type: ignore[attr-defined]


def _bound(scope: ast.AST) -> set[str]:
    """Names that a function or file binds itself, not those of functions inside of it."""
    found: set[str] = set()
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name)
        if not isinstance(node, (*_FUNCTIONS, ast.ClassDef, ast.Lambda)):
            waiting += ast.iter_child_nodes(node)
    return found


def _stores(scope: ast.AST, dotted: str) -> bool:
    return any(_is_store(node, dotted) for node in ast.walk(scope))
