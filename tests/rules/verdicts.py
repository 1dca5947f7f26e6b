"""What a program does wrong: the truth that the rules are measured against."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

from loops import HELD_OUT, LOOPS
from programs import Op, Program
from trial import ENVIRONMENTS, START, Environment, Run, reference, run

# Two beside the six: weights that never move although their scaler steps, and a branch that no
# environment enters, of which running tells nothing.
RAISES, VALUE, STILL, CLOCK, SCALE_LAW, INERT, RIGHT, UNSEEN = ORDER = (
    *("raises", "value", "still", "clock"),
    *("scale law", "inert", "right", "unseen"),
)


def verdict(program: Program) -> str:
    """The first that holds in any environment."""
    worst, runs = RIGHT, dict[Environment, Run]()
    for environment in environments(program):
        runs[environment] = run(program, environment)
        worst = min(worst, _in_one(program, environment, runs[environment]), key=ORDER.index)
        if worst == RAISES:
            return worst
    if worst != VALUE and _is_still(program, runs):
        return STILL
    if worst == RIGHT and program.leaves() and not any(found.gave_up for found in runs.values()):
        return UNSEEN
    if worst == RIGHT and not _keeps_scale_law(program, runs):
        return SCALE_LAW
    return INERT if worst == RIGHT and is_inert(program, runs) else worst


def _is_still(program: Program, runs: dict[Environment, Run]) -> bool:
    """Whether some weights never move although they get gradients and their scaler steps."""
    made = {op[1] for op in program.body if op[0].endswith("backward")}
    return any(
        all(row[o]["weights"] == START for run in runs.values() for row in run.snapshots)
        for o in program.optimizers()
        if o in made and ("step", dict(program.scalers)[o], o) in program.body
    )


def environments(program: Program) -> tuple[Environment, ...]:
    """Those that differ for a program."""
    losses = sum(op[0].endswith("backward") for op in program.body)
    return tuple(e for e in ENVIRONMENTS if e.fault_call is None or e.fault_call[1] < losses)


def _in_one(program: Program, environment: Environment, found: Run) -> str:
    if found.error is not None:
        if not isinstance(found.error, (RuntimeError, AssertionError)):
            raise found.error
        return RAISES
    rows = zip(found.snapshots, reference(program, environment, found), strict=True)
    pairs = [(a[o], b[o]) for a, b in rows for o in program.optimizers()]
    if any(_differ(a[key], b[key]) for a, b in pairs for key in ("weights", "momentum")):
        return VALUE
    if any(
        a["clocks"] not in (b["clocks"], None)
        or a["clock"] != b["clock"]
        or _differ(a["average"], b["average"])
        for a, b in pairs
    ):
        return CLOCK
    return RIGHT


def _differ(left: Any, right: Any) -> bool:
    if left is None or right is None:
        return left is not right
    pairs = zip(left, right, strict=True)
    return not all(math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12) for a, b in pairs)


def _keeps_scale_law(program: Program, runs: dict[Environment, Run]) -> bool:
    """Whether scales and growth counters are those of one update per window, without a fault."""
    return all(_scales(runs[e]) == _lawful(program.name, e) for e in ENVIRONMENTS[:2])


@functools.cache
def _lawful(name: str, environment: Environment) -> list[Any]:
    (loop,) = (loop for loop in (*LOOPS, *HELD_OUT) if loop.name == name)
    return _scales(run(loop, environment))


def _scales(found: Run) -> list[Any]:
    return [snapshot["scales"] for snapshot in found.snapshots]


def is_inert(program: Program, runs: dict[Environment, Run]) -> bool:
    """Whether an event has no effect anywhere, or a gradient reaches no step."""
    if _wastes_a_gradient(program):
        return True
    for i, op in enumerate(program.body):
        if op[0] != "give up":  # a decision, not an event
            measure = program.leaves() and op[0] == "clip"  # the norm is asked for later
            left: tuple[Op, ...] = (("measure", op[1]),) if measure else ()
            body = (*program.body[:i], *left, *program.body[i + 1 :])
            shorter = dataclasses.replace(program, body=body)
            if all(_same(shorter, e, found.snapshots) for e, found in runs.items()):
                return True
    return False


def _same(program: Program, environment: Environment, snapshots: list[dict[str, Any]]) -> bool:
    after = run(program, environment)
    return after.error is None and after.snapshots == snapshots


def _wastes_a_gradient(program: Program) -> bool:
    """Whether gradients are cleared before a step has used them, in any window."""
    waiting: set[str] = set()
    for op in (*program.body, *program.body):
        if op[0].endswith("backward"):
            waiting.add(op[1])
        elif op[0].endswith("step"):
            waiting.discard(op[-1])
        elif op[0] == "zero" and op[-1] in waiting:
            return True
    return bool(waiting) and not any(_steps(program.body, o) for o in waiting)


def _steps(body: tuple[Op, ...], optimizer: str) -> bool:
    return any(op[0].endswith("step") and op[-1] == optimizer for op in body)
