"""Whether a name is a gradient scaler for certain, so that a repair may save its state."""

from __future__ import annotations

import ast
import re

from halfstep.check.repair.statements import spots_of
from halfstep.check.source.inventory import last_name
from halfstep.check.source.module import Module

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_SCALERS = frozenset(["GradScaler", "ShardedGradScaler"])
# A program that looks at all entries of a checkpoint may not know one more.
_STRICT = re.compile(
    r"\.keys\(\)|\bset\(\s*\w*(state|check|ckpt|saved|snap)|\*\*\w*(state|ckpt|saved)"
)


def is_certain(module: Module, line: int, dotted: str) -> bool:
    """Whether `dotted` is a scaler wherever the code at `line` runs, as far as the file shows.

    It is made once, under no condition, and nothing else is ever assigned to it: neither ``None``
    nor what somebody gives.
    """
    if _STRICT.search(module.text):
        return False
    stores = [node for node in module.nodes if _stores(node, dotted)]
    if not stores or not all(_makes(module, node, dotted) for node in stores):
        return False
    return not _is_given(module, dotted) and _is_reached(module, stores[0], line, dotted)


def _stores(node: ast.AST, dotted: str) -> bool:
    """Whether `node` binds or deletes the name."""
    named = isinstance(node, (ast.Name, ast.Attribute))
    return (
        named
        and isinstance(node.ctx, (ast.Store, ast.Del))  # type: ignore[attr-defined]
        and ast.unparse(node) == dotted
    )


def _makes(module: Module, target: ast.AST, dotted: str) -> bool:
    """Whether a target gets a scaler, in a statement that stands under no condition."""
    spots = spots_of(module.tree, target.lineno)  # type: ignore[attr-defined]
    statement = spots[0].statement if spots else None
    if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or len(_targets(statement)) != 1:
        return False
    made = isinstance(statement.value, ast.Call) and last_name(statement.value.func) in _SCALERS
    owners = [spot.owner for spot in spots]
    plain = all(isinstance(o, (ast.Module, ast.ClassDef, ast.With, *_FUNCTIONS)) for o in owners)
    by_init = "." not in dotted or getattr(owners[0], "name", "") == "__init__"
    return made and plain and by_init


def _targets(statement: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    return statement.targets if isinstance(statement, ast.Assign) else [statement.target]


def _is_given(module: Module, dotted: str) -> bool:
    """Whether a function of the file takes something under that name."""
    return any(isinstance(node, ast.arg) and node.arg == dotted for node in module.nodes)


def _is_reached(module: Module, store: ast.AST, line: int, dotted: str) -> bool:
    """Whether the code at `line` runs behind the store."""
    if "." in dotted:
        return True  # in `__init__`
    home, own = _function_at(module, store.lineno), _function_at(module, line)  # type: ignore[attr-defined]
    if home is None and own is not None:
        return True  # made by the file, used when the function is called
    return home is own and store.lineno < line  # type: ignore[attr-defined]


def _function_at(module: Module, line: int) -> ast.AST | None:
    """The innermost function around a line."""
    found: ast.AST | None = None
    for node in module.nodes:
        if isinstance(node, _FUNCTIONS) and node.lineno <= line <= (node.end_lineno or 0):
            found = node  # inner ones come later
    return found
