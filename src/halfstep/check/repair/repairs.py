"""Repairs of mistakes in the order of events, where the shape of the code is plain.

All of them change what training does, which is the point; they are made with ``--unsafe-fixes``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from halfstep.check.repair.statements import Lines, Spot, call_of, spots_of
from halfstep.check.source.inventory import called_names
from halfstep.check.source.module import Module
from halfstep.records.finding import Finding
from halfstep.rules.rule import Edit, Hit

_Repair = Callable[[Finding, Module], tuple[Edit, ...]]


# Clips by a norm that was measured further up, from gradients that carried the scale.
_MEASURED_BEFORE = frozenset(
    ["clip_grads_with_norm_", "mul_", "div_", "_foreach_mul_", "_foreach_div_"]
)


def repair(finding: Finding, hit: Hit, module: Module) -> tuple[Edit, ...]:
    """Edits that put a finding in `module` right; none where that takes a person.

    Args:
        finding: What is wrong.
        hit: The same as its rule says it.
        module: The file.
    """
    if finding.code == "HS117":
        from halfstep.check.repair.checkpoint import scaler_saved_and_loaded

        line = hit.edits[0].place.line if hit.edits else finding.line
        return scaler_saved_and_loaded(line, str(hit.values.get("scaler")), module)
    make = _REPAIRS.get(finding.code)
    return make(finding, module) if make else ()


def _unscale_before_clip(finding: Finding, module: Module) -> tuple[Edit, ...]:
    """``scaler.unscale_(optimizer)`` in front of a clip, if one step follows it for certain.

    Where it stands behind the clip already, the clip goes behind it.
    """
    spots = spots_of(module.tree, finding.line)
    lines = Lines(module)
    if not spots or not lines.stands_alone(spots[0].statement):
        return ()
    if called_names(spots[0].statement) & _MEASURED_BEFORE:
        return ()
    late = [s for spot in spots for s in spot.later if "unscale_(" in ast.unparse(s)]
    if late:
        clip, later = spots[0].statement, spots[0].later
        unused = isinstance(clip, ast.Expr) or later[:1] == late  # what it gives, in between
        plain = late[0] in later and len(late) == 1 and _method(late[0]) == "unscale_"
        movable = plain and unused and lines.stands_alone(late[0])
        return lines.moved_behind(clip, late[0]) if movable else ()
    steps = list(_steps_after(spots))
    if len(steps) != 1:
        return ()
    scaler, optimizer = steps[0]
    return (lines.before(spots[0].statement, f"{scaler}.unscale_({optimizer})"),)


def _steps_after(spots: list[Spot]) -> Iterator[tuple[str, str]]:
    """Scaler and optimizer of the steps that follow, out of ``if`` blocks but not of loops."""
    for spot in spots:
        for statement in spot.later:
            step = _scaler_step(statement)
            if step:
                yield step
        if not isinstance(spot.owner, (ast.If, ast.With)):
            return


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


def _schedule_behind_step(finding: Finding, module: Module) -> tuple[Edit, ...]:
    """The schedule's step moved behind the optimizer's, or the update, of the same block."""
    spots = spots_of(module.tree, finding.line)
    if not spots or not finding.related:
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
    return lines.moved_behind(schedule, target) if lines.stands_alone(target) else ()


def _is_call_at(statement: ast.stmt, line: int) -> bool:
    end = statement.end_lineno or statement.lineno
    return call_of(statement) is not None and statement.lineno <= line <= end


def _method(statement: ast.stmt) -> str | None:
    call = call_of(statement)
    return call.func.attr if call and isinstance(call.func, ast.Attribute) else None


_REPAIRS: dict[str, _Repair] = {
    "HS101": _unscale_before_clip,
    "HS110": _schedule_behind_step,
}
