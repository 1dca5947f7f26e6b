"""Repairs of lines that were left beside halfstep's engine."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfstep.check.repair.statements import Lines, call_of, spots_of
from halfstep.check.source.inventory import last_name
from halfstep.check.source.module import Module
from halfstep.records.finding import Finding
from halfstep.rules.events import Place
from halfstep.rules.rule import Edit, Hit

_GONE = frozenset(["step", "zero_grad", "unscale_"])
_CLIPS = frozenset(["clip_grad_norm_", "clip_grad_norm"])


def without_line(finding: Finding, _: Hit, module: Module) -> tuple[Edit, ...]:
    """Edits after which the engine alone does what the line of a finding does too."""
    spots = spots_of(module.tree, finding.line)
    call = call_of(spots[0].statement) if spots else None
    if call is None or not isinstance(spots[0].statement, ast.Expr):
        return ()
    name = last_name(call.func)
    if name == "backward" and call.args:
        return _plain_loss(call.args[0], module)
    lines, statement = Lines(module), spots[0].statement
    if len(spots[0].block) < 2 or not lines.stands_alone(statement):
        return ()
    if name in _GONE:
        return (lines.without(statement),)
    return tuple(_limit_moved(finding, call, statement, lines, module)) if name in _CLIPS else ()


def _plain_loss(given: ast.expr, module: Module) -> tuple[Edit, ...]:
    """``loss`` for ``loss / 4`` and for ``scaler.scale(loss)``."""
    inner: ast.expr | None = None
    if isinstance(given, ast.BinOp) and isinstance(given.op, ast.Div):
        inner = given.left
    elif isinstance(given, ast.Call) and last_name(given.func) == "scale" and len(given.args) == 1:
        inner = given.args[0]
    return () if inner is None else (Edit(module.place(given), ast.unparse(inner)),)


def _limit_moved(
    finding: Finding, clip: ast.Call, statement: ast.stmt, lines: Lines, module: Module
) -> Iterator[Edit]:
    """The limit of a clip given to the engine, which this file makes without one."""
    made = {r.line for r in finding.related}
    engines = [
        node
        for node in module.nodes
        if isinstance(node, ast.Call) and last_name(node.func) == "Engine" and node.lineno in made
    ]
    limits = [*clip.args[1:2], *(k.value for k in clip.keywords if k.arg == "max_norm")]
    plain = len(clip.args) + len(clip.keywords) == 2 and isinstance(limits[0], ast.Constant)
    if len(engines) != 1 or len(limits) != 1 or not plain:
        return
    names = {keyword.arg for keyword in engines[0].keywords}
    if names & {"max_norm", "clip", None}:
        return
    place = module.place(engines[0])
    end = Place(place.path, place.end_line, place.end_column - 1, place.end_line, place.end_column)
    text = lines.text(end)
    if text != ")":
        return
    yield Edit(end, f", max_norm={ast.unparse(limits[0])})")
    yield lines.without(statement)
