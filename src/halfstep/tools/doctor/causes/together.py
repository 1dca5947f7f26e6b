"""Causes beside those of ops, and all causes in the order in which one explains the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from halfstep.records import Cause
from halfstep.records.diagnosis import CAUSE_KINDS
from halfstep.tools.doctor.causes.given import buffer_cause, made, some
from halfstep.tools.doctor.examination import Examination


def poisoned_buffers(found: Examination) -> list[Cause]:
    """Buffers that a pass left not finite.

    Args:
        found: The passes.
    """
    names = list(dict.fromkeys(n for p in found.passes.values() for n in p.bad_buffers))
    if not names or ("fp32" in found.passes and not found.passes["fp32"].is_finite):
        return []  # said beside what poisons them in every format
    passes = tuple(name for name, p in found.passes.items() if p.bad_buffers)
    cause = buffer_cause(found.subject, names[0], f"finite before the pass: {some(names)}", passes)
    return [replace(cause, is_precision="fp32" not in passes, mechanism="consequence")]


def half_losses(found: Examination) -> list[Cause]:
    """A loss in FP16: its own gradient is the loss scale.

    Args:
        found: The passes.
    """
    passes = [p for p in found.passes.values() if p.loss_dtype is torch.float16]
    if not passes:
        return []
    is_vector = passes[0].loss_is_vector
    shape = "one element in a dimension" if is_vector else "no dimension"
    stock = ", and a stock GradScaler keeps a loss with a dimension in FP16" if is_vector else ""
    return [
        made(
            "half_loss",
            "overflow",
            tuple(p.name for p in passes),
            is_precision=True,
            severity="error" if is_vector else "note",
            evidence=f"the loss is float16 with {shape}",
            explanation="The loss is FP16: its own gradient is the loss scale, which is inf from"
            f" 65536 on{stock}.",
            remedy="Compute the loss in FP32, from logits.float(), and reduce it to no dimension.",
        )
    ]


def merged(causes: Sequence[Cause]) -> tuple[Cause, ...]:
    """One cause for the same thing in several passes, errors first, each explaining the next.

    Args:
        causes: In any order.
    """
    by_place: dict[tuple[object, ...], Cause] = {}
    for cause in causes:
        op = cause.op
        key: tuple[object, ...] = (cause.kind, cause.module, cause.subject)
        if op is not None:  # a format may round a line earlier than another one
            is_digits = cause.is_precision and cause.mechanism == "rounding"
            kind = "rounding" if is_digits else (cause.kind, op.op, op.occurrence)
            key = (kind, cause.module, op.phase)
        if key in by_place:
            passes = dict.fromkeys((*by_place[key].passes, *cause.passes))
            by_place[key] = replace(by_place[key], passes=tuple(passes))
        else:
            by_place[key] = cause
    return tuple(sorted(by_place.values(), key=_rank))


def _rank(cause: Cause) -> tuple[object, ...]:
    """What came in explains what ops do; those are in the order in which they were found."""
    is_given = cause.mechanism in ("input", "dtype")
    follows = cause.mechanism == "consequence"
    place = CAUSE_KINDS.index(cause.kind) if cause.op is None else 0
    return (cause.severity != "error", not is_given, follows, cause.op is None, place)
