"""Shapes of code that decide how the interpreter runs it."""

from __future__ import annotations

import ast

from halfstep.check.inventory import called_names, last_name
from halfstep.check.module import INTERESTING, Module
from halfstep.rules.syntax import children


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


def has_modulo(node: ast.AST, module: Module) -> bool:
    """Whether a remainder decides if something happens; inner loops are asked for themselves."""
    if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
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
