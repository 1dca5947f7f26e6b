"""Shapes of code that decide how the interpreter runs it."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from typing import TypeGuard

from halfstep.check.inventory import called_names, last_name
from halfstep.check.module import INTERESTING, Module
from halfstep.rules.syntax import children

LoopNode = ast.For | ast.AsyncFor | ast.While
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


def leaves(body: list[ast.stmt]) -> bool:
    """Whether a branch ends the iteration, the loop, the function or the program."""
    last = body[-1]
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        return getattr(last.value.func, "attr", "") in ("exit", "_exit")
    return isinstance(last, (ast.Continue, ast.Break, ast.Return, ast.Raise))


def is_abstract(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a method is only there to be overridden."""
    last = node.body[-1]
    if len(node.body) > 2 or not isinstance(last, ast.Raise) or last.exc is None:
        return False
    named = last.exc.func if isinstance(last.exc, ast.Call) else last.exc
    return last_name(named) == "NotImplementedError"


def counts(node: LoopNode, module: Module) -> bool:
    """Whether a condition in a loop counts its rounds: ``(i + 1) % accumulate == 0``."""
    if any(has_modulo(statement, module) for statement in node.body):
        return True
    names = windows(node)
    tests = (n for s in node.body for n in own_nodes(s) if isinstance(n, ast.If)) if names else ()
    return any(_mentions(test.test, names) and module.acts(test) for test in tests)


def windows(node: LoopNode) -> frozenset[str]:
    """Variables that a loop counts up and sets to 0 again, in rounds without loops of their own."""
    if has_inner_loop(node):
        return frozenset()
    nodes = [inner for statement in node.body for inner in own_nodes(statement)]
    raised = {
        ast.unparse(n.target)
        for n in nodes
        if isinstance(n, ast.AugAssign) and isinstance(n.op, ast.Add) and _is_number(n.value, 1)
    }
    cleared = {
        ast.unparse(target)
        for n in nodes
        if isinstance(n, ast.Assign) and _is_number(n.value, 0)
        for target in n.targets
    }
    return frozenset(raised & cleared)


def has_inner_loop(node: LoopNode) -> bool:
    """Whether a loop stands in another one."""
    return any(isinstance(inner, _LOOPS) for s in node.body for inner in ast.walk(s))


def is_count(test: ast.expr) -> TypeGuard[ast.Compare]:
    """Whether a condition is ``i < n``."""
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], (ast.Lt, ast.LtE)):
        return False
    return len(test.ops) == 1 and called_names(test) <= {"len"}


def asks_for_rest(node: LoopNode, module: Module) -> bool:
    """Whether something outside of a loop asks if it leaves a part of a window over."""
    names = (
        {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
        if isinstance(node, (ast.For, ast.AsyncFor))
        else set()
    )
    inside = set(ast.walk(node))
    outside = [n for n in ast.walk(module.tree) if n not in inside]
    for other in outside:
        if isinstance(other, ast.Assign) and "len" in called_names(other.value):
            names |= {ast.unparse(target) for target in other.targets}
    counted = windows(node)
    for other in outside:
        if isinstance(other, ast.BinOp) and isinstance(other.op, ast.Mod):
            if "len" in called_names(other.left) or _mentions(other.left, names):
                return True
        elif isinstance(other, (ast.If, ast.IfExp)) and _mentions(other.test, counted):
            return True
    return False


def flushes(whole: ast.BoolOp, part: ast.expr) -> bool:
    """Whether `part` is an alternative to a count of batches and no such count itself."""
    if not isinstance(whole.op, ast.Or) or _has_count(part):
        return False
    return any(map(_has_count, whole.values))


def _has_count(node: ast.AST) -> bool:
    return any(isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod) for n in ast.walk(node))


def bound_names(node: LoopNode) -> frozenset[str]:
    """Names that a loop sets anew in each round."""
    names = (n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    return frozenset(name.id for name in names)


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """`node` and what is in it, definitions left out."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
        return
    yield node
    for child in children(node):
        yield from own_nodes(child)


def _mentions(node: ast.AST, names: Collection[str]) -> bool:
    found = (n for n in ast.walk(node) if isinstance(n, (ast.Name, ast.Attribute)))
    return any(ast.unparse(n) in names for n in found)


def _is_number(node: ast.expr, value: int) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value == value


def has_modulo(node: ast.AST, module: Module) -> bool:
    """Whether a remainder decides if something happens; inner loops are asked for themselves."""
    if isinstance(node, _LOOPS):
        return False
    condition = node.test if isinstance(node, (ast.If, ast.IfExp)) else None
    if condition and any(isinstance(n, ast.Mod) for n in ast.walk(condition)):
        return module.relevant(node) and not _only_saves(node, module)
    return any(has_modulo(child, module) for child in children(node))


def _only_saves(node: ast.AST, module: Module) -> bool:
    """Whether a branch writes a checkpoint and does nothing else to the training."""
    inner = list(ast.walk(node))
    calls = called_names(node) & (INTERESTING | module.acting() | module.imported)
    left = any(isinstance(n, (ast.Continue, ast.Break, ast.Return, ast.Raise)) for n in inner)
    return bool(calls) and calls <= {"save", "state_dict"} and not left
