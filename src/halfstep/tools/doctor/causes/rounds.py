"""Round after round: what is wrong with a pass, what heals it, what is still wrong then."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from halfstep.records import Cause, OpRecord
from halfstep.tools.doctor.causes import advice
from halfstep.tools.doctor.causes.blame import Start, starts_of_difference
from halfstep.tools.doctor.causes.broken import broken, silent, with_buffers
from halfstep.tools.doctor.causes.mending import (
    Remedy,
    alike,
    everything,
    is_healed,
    pattern_of,
    remedies,
    with_islands,
    without_covered,
)
from halfstep.tools.doctor.causes.path import path_to_loss
from halfstep.tools.doctor.causes.underflow import is_right
from halfstep.tools.doctor.examination import Examination
from halfstep.tools.doctor.runs.passes import Pass, trace_pass
from halfstep.tools.doctor.runs.results import GRADIENTS

_ROUNDS = 4  # of faults that hide one another
_MOST = 8  # different places that are tried in one round


def broken_passes(found: Examination) -> list[Cause]:
    """Why passes are not finite or wrong; what FP32 shares is explained once, in FP32.

    Args:
        found: The passes.
    """
    fp32 = found.passes["fp32"]
    if not fp32.is_finite:
        return [with_buffers(broken(found, fp32), fp32)]
    causes: list[Cause] = []
    for names in _looked_at(found):
        causes += [replace(c, passes=names) for c in explained(found, found.passes[names[0]])]
    return causes


def _looked_at(found: Examination) -> list[tuple[str, ...]]:
    """The passes to explain, each with those that have the same causes."""
    passes = found.passes
    chosen: list[tuple[str, ...]] = [("bf16",)] if "bf16" in passes else []
    plain, scaled = passes.get("fp16"), passes.get("fp16 scaled")
    if found.fp16_is_explained:
        return chosen
    if plain is not None and not plain.is_finite:
        both = scaled is not None and not scaled.is_finite
        chosen.append(("fp16", "fp16 scaled") if both else ("fp16",))
    if scaled is not None and (scaled.is_finite or plain is None):
        chosen.append(("fp16 scaled",))
    return chosen


def explained(found: Examination, low: Pass) -> list[Cause]:
    """Everything that is wrong with one pass, each cause with a remedy that was tried.

    A fault can hide another one: what was found is put into FP32, and the pass is looked at again.

    Args:
        found: The passes.
        low: One of them, in 16 bits.
    """
    causes: list[tuple[Cause, Remedy]] = []
    islands = tuple(low.policy.modules)
    first, healed = low, False
    for _ in range(_ROUNDS):
        wrong = found.wrong(low)
        if not wrong:
            healed = True
            break
        if not found.has_time(f"remedies for {advice.in_words((low.name,))}"):
            break
        step = _next_cause(found, low, wrong)
        if step is None:  # what is still wrong has no place
            healed = bool(causes) and low.is_finite
            break
        cause, remedy, healed = step
        if cause.op is not None:
            cause = replace(cause, path=path_to_loss(low, found.beside[low.name], cause.op))
        causes.append((cause, remedy))
        if not remedy.islands or set(remedy.islands) <= set(islands):
            break
        islands += remedy.islands
        low = _looked_at_again(found, first, islands)
    found.keep(first)
    causes.sort(key=lambda each: _when(each[0]))
    every = without_covered(name for _, r in causes for name in r.islands)
    own = next((r.own for _, r in causes if r.own), "")
    bf16 = first.name != "bf16" and is_right(found, "bf16")
    return [
        replace(
            cause,
            remedy=advice.keep(cause.op, every, own, healed, bf16),
            islands=every if healed else (),
        )
        if cause.is_precision
        else cause
        for cause, _ in causes
    ]


def _when(cause: Cause) -> tuple[bool, int]:
    """The order in which ops run."""
    op = cause.op
    return (False, -1) if op is None else (op.phase == "backward", op.index)


def _looked_at_again(found: Examination, first: Pass, islands: tuple[str, ...]) -> Pass:
    policy = with_islands(first.policy, islands)
    policy.attach(found.subject.model)
    try:
        low = trace_pass(found.subject, first.name, policy, first.loss_scale)
    finally:
        policy.detach(found.subject.model)
    found.keep(low)
    return low


def _next_cause(
    found: Examination, low: Pass, wrong: Mapping[str, float]
) -> tuple[Cause, Remedy, bool] | None:
    """The most upstream cause, what to keep in FP32 for it, and whether that heals all."""
    outputs = {name: e for name, e in wrong.items() if name.startswith("output ")}
    if not low.is_finite:
        # a backward pass may overflow because the forward pass is wrong already
        is_silent = math.isfinite(low.loss) and bool(outputs)
        forward = _silent_cause(found, low, outputs, wrong) if is_silent else None
        if forward is not None:
            return forward
        cause = broken(found, low)
        if cause.op is None or not cause.is_precision:
            return cause, Remedy(), False
        shown = low.bad.record if low.bad is not None else cause.op
        return _tried(found, low, cause, [cause.op, shown], wrong, must_heal=False)
    return _silent_cause(found, low, wrong, wrong)


def _silent_cause(
    found: Examination, low: Pass, ends: Mapping[str, float], wrong: Mapping[str, float]
) -> tuple[Cause, Remedy, bool] | None:
    """The most upstream op whose restoration to FP32 heals what is wrong."""
    starts = starts_of_difference(low, found.beside[low.name], _positions(low, ends))
    groups: dict[tuple[str, str, str], Start] = {}
    for start in starts:
        if start.mechanism == "underflow" and start.op.phase == "backward":
            continue  # a matter of the loss scale
        place = alike(pattern_of(start.shown_by.module))
        groups.setdefault((place, start.shown_by.op, start.mechanism), start)
    chosen = list(groups.values())[:_MOST]
    ops = [op for start in chosen for op in (start.op, start.shown_by)]
    if not ops or not is_healed(found, low, everything(found, low, ops), wrong):
        return None  # no single place: the error grows a little in every op
    for start in chosen:
        ops = [start.op, start.shown_by]
        tried = _tried(found, low, silent(low, start), ops, wrong, must_heal=True)
        if tried is not None:
            return tried
    return None


def _tried(
    found: Examination,
    low: Pass,
    cause: Cause,
    ops: Sequence[OpRecord],
    wrong: Mapping[str, float],
    must_heal: bool,
) -> tuple[Cause, Remedy, bool] | None:
    last = Remedy()
    for remedy in remedies(found, low, ops):
        if not found.has_time("further remedies"):
            break
        if is_healed(found, low, remedy, wrong):
            if must_heal and not is_healed(found, low, remedy, wrong, other_rounding=True):
                continue
            return cause, remedy, True
        if remedy.islands and (not last.islands or "*" in remedy.islands[0]):
            last = last if "*" in "".join(last.islands) else remedy
    return None if must_heal else (cause, last, False)


def _positions(low: Pass, wrong: Mapping[str, float]) -> list[int]:
    """Indices of the results that are wrong, where an op made them."""
    found: list[int | None] = []
    for name in wrong:
        if name.startswith("output "):
            found.append(low.output_ends[int(name.removeprefix("output "))])
        elif name.startswith("gradient "):
            found.append(low.gradient_ends.get(name.removeprefix("gradient ")))
        elif name == GRADIENTS:
            found += low.gradient_ends.values()
    return [position for position in found if position is not None]
