"""Repairs of mistakes in the order of events, where the shape of the code is plain.

All of them change what training does, which is the point; they are made with ``--unsafe-fixes``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator

from halfstep.check.repair.beside_engine import without_line
from halfstep.check.repair.statements import Lines, Spot, call_of, spots_of
from halfstep.check.source.inventory import called_names
from halfstep.check.source.module import Module
from halfstep.records.finding import Finding
from halfstep.rules.events import Place
from halfstep.rules.rule import Edit, Hit
from halfstep.rules.syntax import calls_in, inside, last

_Repair = Callable[[Finding, Hit, Module], tuple[Edit, ...]]
# Clips by a norm that was measured further up, from gradients that carried the scale.
_MEASURED_BEFORE = frozenset(
    ["clip_grads_with_norm_", "mul_", "div_", "_foreach_mul_", "_foreach_div_"]
)
_LEAVES = (ast.Return, ast.Raise, ast.Break, ast.Continue, ast.Yield, ast.YieldFrom)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def repair(finding: Finding, hit: Hit, module: Module) -> tuple[Edit, ...]:
    """Edits that put a finding in `module` right; none where that takes a person.

    Args:
        finding: What is wrong.
        hit: The same as its rule says it.
        module: The file.
    """
    if finding.code == "HS117":
        from halfstep.check.repair.checkpoint import scaler_saved_and_loaded

        return scaler_saved_and_loaded(_entry_of(hit), str(hit.values.get("scaler")), module)
    make = _REPAIRS.get(finding.code)
    return make(finding, hit, module) if make else ()


def _entry_of(hit: Hit) -> Place:
    """Where the rule would put an entry, else where the checkpoint is written."""
    return hit.edits[0].place if hit.edits else hit.where


def _unscale_before_clip(finding: Finding, hit: Hit, module: Module) -> tuple[Edit, ...]:
    """``scaler.unscale_(optimizer)`` in front of a clip, if one step follows it for certain.

    Where it stands behind the clip already, the clip goes behind it.
    """
    spots = _of_function(spots_of(module.tree, finding.line))
    lines = Lines(module)
    if not spots or not lines.stands_alone(spots[0].statement) or _is_caught(spots):
        return ()
    if called_names(spots[0].statement) & _MEASURED_BEFORE or len(hit.used_by) > 1:
        return ()
    if any(_unscales(statement) for spot in spots for statement in spot.later):
        return _clip_behind_unscale(spots[0], lines)
    steps = list(_steps_after(spots))
    if len(steps) != 1 or None in steps or _unscales(spots[-1].statement):
        return ()
    (scaler, optimizer), *_ = (step for step in steps if step)
    return (lines.before(spots[0].statement, f"{scaler}.unscale_({optimizer})"),)


def _clip_behind_unscale(spot: Spot, lines: Lines) -> tuple[Edit, ...]:
    """The clip moved, if nothing between the two can use what it clips, or what it gives."""
    clip, later = spot.statement, spot.later
    late = [statement for statement in later if _unscales(statement)]
    if len(late) != 1 or _method(late[0]) != "unscale_" or not lines.stands_alone(late[0]):
        return ()
    between = later[: later.index(late[0])]
    unused = isinstance(clip, ast.Expr) or not between
    if not unused or any(calls_in(between)) or _leaves(between):
        return ()
    return lines.moved_behind(clip, late[0])


def _unscales(statement: ast.stmt) -> bool:
    return "unscale_(" in ast.unparse(statement)


def _leaves(statements: Iterable[ast.stmt]) -> bool:
    """Whether what stands behind `statements` may be left out."""
    return any(isinstance(node, _LEAVES) for node in inside(statements))


def _of_function(spots: list[Spot]) -> list[Spot]:
    """Those in the function that the innermost stands in, or in the file."""
    index = next((i for i, s in enumerate(spots) if isinstance(s.owner, _FUNCTIONS)), len(spots))
    return spots[: index + 1]


def _is_caught(spots: list[Spot]) -> bool:
    """Whether training goes on after an exception: a step may then be left out half-way."""
    owners = (spot.owner for spot in spots)
    return any(isinstance(o, (ast.Try, ast.TryStar)) and o.handlers for o in owners)


def _steps_after(spots: list[Spot]) -> Iterator[tuple[str, str] | None]:
    """Scaler and optimizer of the steps that follow for certain, ``None`` for those that may.

    They are looked for in the blocks around, out of ``if`` but not of loops.
    """
    known = False
    for spot in spots:
        for statement in spot.later:
            step = _scaler_step(statement)
            if step or _may_step(statement):
                yield step
            known = known or step is not None
            if _leaves([statement]):
                if not known:
                    yield None
                return
        if not isinstance(spot.owner, (ast.If, ast.With)):
            return


def _may_step(statement: ast.stmt) -> bool:
    """Whether anything but a schedule may step in a statement."""
    calls = (call for call in calls_in([statement]) if last(call.func) == "step")
    return any("sched" not in ast.unparse(call.func).lower() for call in calls)


def _scaler_step(statement: ast.stmt) -> tuple[str, str] | None:
    call = call_of(statement)
    if call is None or not isinstance(call.func, ast.Attribute) or call.func.attr != "step":
        return None
    if len(call.args) != 1 or not _is_name(call.args[0]) or not _is_name(call.func.value):
        return None
    scaler = ast.unparse(call.func.value)
    return (scaler, ast.unparse(call.args[0])) if "scaler" in scaler.lower() else None


def _is_name(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def _schedule_behind_step(finding: Finding, hit: Hit, module: Module) -> tuple[Edit, ...]:
    """The schedule's step moved behind the optimizer's, or the update, of the same block."""
    spots = spots_of(module.tree, finding.line)
    if not spots or not finding.related or finding.related[0].path != module.path:
        return ()
    schedule = spots[0].statement
    step_line = finding.related[0].line
    later = spots[0].later
    index = next((i for i, s in enumerate(later) if _is_call_at(s, step_line)), None)
    lines = Lines(module)
    if index is None or not isinstance(schedule, ast.Expr) or not lines.stands_alone(schedule):
        return ()
    target = later[index]
    if index + 1 < len(later) and _method(later[index + 1]) == "update":
        target = later[index + 1]
    passed = later[: later.index(target) + 1]
    if _leaves(passed) or _names_in(schedule, ast.Load) & _names_in_all(passed, ast.Store):
        return ()
    return lines.moved_behind(schedule, target) if lines.stands_alone(target) else ()


def _names_in(node: ast.AST, context: type[ast.expr_context]) -> set[str]:
    names = (n for n in ast.walk(node) if isinstance(n, ast.Name))
    return {n.id for n in names if isinstance(n.ctx, context)}


def _names_in_all(nodes: Iterable[ast.AST], context: type[ast.expr_context]) -> set[str]:
    return {name for node in nodes for name in _names_in(node, context)}


def _is_call_at(statement: ast.stmt, line: int) -> bool:
    end = statement.end_lineno or statement.lineno
    return call_of(statement) is not None and statement.lineno <= line <= end


def _method(statement: ast.stmt) -> str | None:
    call = call_of(statement)
    return call.func.attr if call and isinstance(call.func, ast.Attribute) else None


_REPAIRS: dict[str, _Repair] = {
    "HS101": _unscale_before_clip,
    "HS110": _schedule_behind_step,
    "HS134": without_line,
}
