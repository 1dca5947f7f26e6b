"""Conditions that hold where a node stands, by the branches around it and those that have left."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfstep.rules.source import Source

_LEAVES = (ast.Return, ast.Continue, ast.Break, ast.Raise)


def known_at(source: Source, node: ast.AST) -> dict[str, bool]:
    """Text of each condition that is decided at `node`, and which way; ``not`` is taken off."""
    known: dict[str, bool] = {}
    inner = node
    for outer in source.parents(node):
        if isinstance(outer, (ast.If, ast.IfExp)) and inner is not outer.test:
            body = outer.body if isinstance(outer.body, list) else [outer.body]
            known.update(implied(outer.test, inner in body))
        for block in _blocks(outer):
            if inner in block:
                known.update(_left_before(block[: block.index(inner)]))
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            break
        inner = outer
    return known


def apart(source: Source, one: ast.AST, other: ast.AST) -> bool:
    """Whether two nodes stand in different branches of one question: no run sees both."""
    known, others = known_at(source, one), known_at(source, other)
    return any(others.get(text, holds) is not holds for text, holds in known.items())


def implied(test: ast.expr, holds: bool) -> Iterator[tuple[str, bool]]:
    """What is known of single conditions if `test` holds, or does not."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from implied(test.operand, not holds)
    elif isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) is holds:
        for part in test.values:
            yield from implied(part, holds)
    elif isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.NotEq, ast.IsNot)):
        yield from _compared(test, not holds)
    elif isinstance(test, ast.Compare):
        yield from _compared(test, holds)
    else:
        yield ast.unparse(test), holds


def excludes(known: dict[str, bool], test: ast.expr) -> bool:
    """Whether `test` cannot hold where `known` does."""
    for text, wanted in implied(test, True):
        if known.get(text, wanted) is not wanted:
            return True
        left, _, right = text.partition(" == ")
        others = (k.partition(" == ") for k, holds in known.items() if holds)
        if wanted and right and any(k == left and v not in ("", right) for k, _, v in others):
            return True
    return False


def _compared(test: ast.Compare, holds: bool) -> Iterator[tuple[str, bool]]:
    if len(test.ops) == 1 and isinstance(test.ops[0], (ast.Eq, ast.NotEq, ast.Is, ast.IsNot)):
        right = test.comparators[0]
        if isinstance(right, ast.Constant) and isinstance(right.value, bool):
            yield from implied(test.left, holds is right.value)
            return
        if isinstance(right, ast.Constant):
            yield f"{ast.unparse(test.left)} == {ast.unparse(right)}", holds
            return
    yield ast.unparse(test), holds


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            yield block


def _left_before(statements: list[ast.AST] | list[ast.stmt]) -> dict[str, bool]:
    known: dict[str, bool] = {}
    for statement in statements:
        if isinstance(statement, ast.If) and isinstance(statement.body[-1], _LEAVES):
            known.update(implied(statement.test, False))
    return known
