"""Whether the doctor was right, from its record and the truth of the planter."""

from __future__ import annotations

from fnmatch import fnmatchcase

from halfstep.records import Cause, Diagnosis
from zoo.case import Case, Truth


def problem(case: Case, found: Diagnosis) -> str:
    """Empty where the doctor is right, else what is wrong in a few words.

    Args:
        case: What was looked at.
        found: What the doctor said.
    """
    if case.truth is None:
        return "" if found.is_healthy else "false alarm"
    errors = [cause for cause in found.causes if cause.severity == "error"]
    if not errors:
        return "found nothing"
    return "; ".join(
        [*place_problems(errors[0], case.truth), *cause_problems(errors[0], case.truth)]
    )


def place_problems(first: Cause, truth: Truth) -> list[str]:
    """What is wrong with the place: module, op and phase, or the named thing.

    Args:
        first: The cause that explains the others.
        truth: What is wrong.
    """
    problems = []
    if not any(fnmatchcase(path_of(first.module), pattern) for pattern in truth.modules):
        problems.append(f"module {first.module!r}")
    if truth.ops:
        op = first.op.op.removeprefix("aten.").partition(".")[0] if first.op is not None else ""
        if op not in truth.ops:
            problems.append(f"op {op!r}")
    if truth.phase and (first.op is None or first.op.phase != truth.phase):
        problems.append(f"phase {first.op.phase if first.op is not None else None}")
    if truth.subject and first.subject != truth.subject:
        problems.append(f"subject {first.subject!r}")
    return problems


def cause_problems(first: Cause, truth: Truth) -> list[str]:
    """What is wrong with the cause: its kind, its passes, and whether precision can cure it.

    Args:
        first, truth: As in `place_problems`.
    """
    problems = []
    if first.kind not in truth.kinds and "*" not in truth.kinds:
        problems.append(f"kind {first.kind}")
    if not set(first.passes) <= truth.passes:
        problems.append(f"passes {', '.join(first.passes)}")
    if truth.is_precision is not None and first.is_precision != truth.is_precision:
        problems.append(
            "said to be precision" if first.is_precision else "said not to be precision"
        )
    return problems


def path_of(module: str) -> str:
    """A module's path without the class of the model: ``Net.blocks.0`` is ``blocks.0``.

    Args:
        module: As in `Cause.module`.
    """
    return module.partition(".")[2]
