"""Programs that are one edit or two away from a correct one."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence

from programs import Op, Program

EDITS = ("delete", "insert", "duplicate", "move")


def mutants(program: Program) -> Iterator[Program]:
    """Every program that is one edit away, each body once."""
    seen = {program.body}
    for edit, body in _edits(program):
        if body not in seen:
            seen.add(body)
            yield dataclasses.replace(program, body=body, edit=edit)


def all_mutants(loops: Sequence[Program]) -> list[Program]:
    """The one-edit mutants of several loops, equal ones once."""
    found = {_identity(mutant): mutant for loop in loops for mutant in mutants(loop)}
    for loop in loops:
        found.pop(_identity(loop), None)
    return list(found.values())


def double_mutants(loops: Sequence[Program], number: int, seed: int = 0) -> list[Program]:
    """Different programs two edits away, none of them one edit away from any loop."""
    known = {_identity(p) for loop in loops for p in (loop, *mutants(loop))}
    dice, found = random.Random(seed), dict[object, Program]()
    while len(found) < number:
        first_edit, body = dice.choice(list(_edits(loop := dice.choice(loops))))
        between = dataclasses.replace(loop, body=body)
        if not body:
            continue
        second_edit, body = dice.choice(list(_edits(between)))
        edit = " + ".join(sorted((first_edit, second_edit)))
        mutant = dataclasses.replace(loop, body=body, edit=edit)
        if _identity(mutant) not in known:
            found.setdefault(_identity(mutant), mutant)
    return list(found.values())


def edits_at(program: Program, position: int, own: Sequence[Op]) -> Iterator[Program]:
    """Programs that one edit of the operation at `position`, or one beside it, makes.

    Args:
        program: To change.
        position: Of an operation in it.
        own: Operations that an insertion may bring beside those of every mutant.
    """
    body = program.body
    rest = (*body[:position], *body[position + 1 :])
    bodies = [rest]
    bodies += [(*rest[:j], body[position], *rest[j:]) for j in range(len(body))]
    for op in (*insertable(program), *own, body[position]):
        bodies += [(*body[:i], op, *body[i:]) for i in (position, position + 1)]
    for changed in dict.fromkeys(bodies):
        yield dataclasses.replace(program, body=changed)


def _identity(program: Program) -> object:
    return program.body, program.scalers, program.flag


def _edits(program: Program) -> Iterator[tuple[str, tuple[Op, ...]]]:
    body = program.body
    for i, op in enumerate(body):
        rest = (*body[:i], *body[i + 1 :])
        yield "delete", rest
        yield "duplicate", (*body[: i + 1], *body[i:])
        for j in range(len(body)):
            yield "move", (*rest[:j], op, *rest[j:])
    for op in insertable(program):
        for i in range(len(body) + 1):
            yield "insert", (*body[:i], op, *body[i:])


def insertable(program: Program) -> Iterator[Op]:
    """Operations that an insertion may bring."""
    for optimizer, scaler in program.scalers:
        yield from [("zero", optimizer), ("unscale", scaler, optimizer), ("clip", optimizer)]
        yield from [("step", scaler, optimizer), ("direct step", optimizer), ("update", scaler)]
        yield from [("backward", optimizer, "0", ""), ("schedule", optimizer)]
        yield from [("average", optimizer), ("backward", optimizer, "0", scaler)]
    if len({scaler for _, scaler in program.scalers}) < len(program.scalers):
        yield ("clip both",)
