"""From traced passes to causes: producers, not propagators; numbers, not names of ops."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from halfstep.records import Cause, OpRecord
from halfstep.records.diagnosis import CAUSE_KINDS
from halfstep.tools.doctor.causes import advice
from halfstep.tools.doctor.causes.blame import Start, start_of_invalid, starts_of_difference
from halfstep.tools.doctor.causes.given import batch_cause, buffer_cause, made, some, weights_cause
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
from halfstep.tools.doctor.runs.one_batch import OneBatch
from halfstep.tools.doctor.runs.passes import Pass, capture, trace_pass
from halfstep.tools.doctor.runs.results import GRADIENTS
from halfstep.tracing.against import Against, format_of

_ROUNDS = 4  # of faults that hide one another
_MOST = 8  # different places that are tried in one round


def broken_passes(found: Examination) -> list[Cause]:
    """Why passes are not finite or wrong; what FP32 shares is explained once, in FP32.

    Args:
        found: The passes.
    """
    fp32 = found.passes["fp32"]
    if not fp32.is_finite:
        return [_with_buffers(_broken(found, fp32), fp32)]
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
        silent = _silent_cause(found, low, outputs, wrong) if is_silent else None
        if silent is not None:
            return silent
        cause = _broken(found, low)
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
        tried = _tried(found, low, _silent(low, start), ops, wrong, must_heal=True)
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


def _with_buffers(cause: Cause, p: Pass) -> Cause:
    """A cause with the buffers that it leaves not finite."""
    if not p.bad_buffers:
        return cause
    text = f"buffers that this leaves not finite, in FP32 too: {some(p.bad_buffers)}"
    joined = f"{cause.evidence}; {text}" if cause.evidence else text
    return replace(
        cause,
        evidence=joined,
        remedy=f"{cause.remedy} Engine(..., buffers='rollback') keeps buffers clean on a skip.",
    )


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


def _broken(found: Examination, p: Pass) -> Cause:
    """Why the loss or a gradient of a pass is not finite."""
    formats = (p.name,)
    if p.bad is None or p.producer is None:
        return _unknown(p)
    if leaf := p.bad.leaf:
        return _came_in(found.subject, leaf, formats)
    op = p.bad.record
    beside = found.beside.get(p.name)
    difference = beside.differences.get(op.index) if beside is not None else None
    reference = difference.reference_largest if difference is not None else math.nan
    exact = _largest_if_exact(found.subject, p, op)
    if exact is None and difference is not None and difference.reference_is_finite:
        exact = reference
    if exact is not None and not math.isnan(exact):
        return _overflow(op, p, max(exact, reference if reference == reference else 0.0))
    if p.name != "fp32" and beside is not None:
        start = start_of_invalid(p, beside, op.index)
        return _lost(op, p, start, beside) if start is not None else _outside(op, p, reference)
    explanation, remedy = advice.invalid(op)
    return _cause(
        "invalid_operation", "invalid", p, op, reference, explanation, remedy, p.name != "fp32"
    )


def _largest_if_exact(subject: OneBatch, p: Pass, op: OpRecord) -> float | None:
    """Largest magnitude of an op's result on the same inputs with a range without limits.

    float64 has a limit too: where it ends there, smaller inputs tell a value that is too large
    (the result becomes finite) from one that does not exist (1/0 stays what it is).

    Returns:
        inf for a value beyond float64, NaN where no finite value exists, ``None`` if unknown.
    """
    call = capture(subject, p, op.index)
    if call is None:
        return None
    exact = call.largest_in_float64(op.output)
    if exact is None or math.isfinite(exact):
        return exact
    smaller = call.largest_in_float64(op.output, factor=2.0**-10)
    return math.inf if smaller is not None and math.isfinite(smaller) else math.nan


def _overflow(op: OpRecord, p: Pass, largest: float) -> Cause:
    format = format_of(op.dtype) or p.policy.row
    beyond = math.log2(largest / format.largest) if largest > format.largest else math.nan
    if p.name == "fp32":
        explanation, remedy = advice.beyond_fp32(op, largest)
    else:
        names = advice.in_words((p.name,))
        explanation, remedy = advice.overflow(op, largest, beyond, names)
    found = _cause("overflow", "overflow", p, op, largest, explanation, remedy, p.name != "fp32")
    return replace(found, missing_bits=beyond)


def _lost(failed: OpRecord, p: Pass, start: Start, beside: Against) -> Cause:
    names = advice.in_words((p.name,))
    kind = start.mechanism if start.mechanism != "overflow" else "rounding"
    explanation, remedy = advice.lost(start.op, failed, names, kind != "underflow")
    largest = start.difference.reference_largest
    found = _cause(kind, kind, p, start.op, largest, explanation, remedy, True)
    return replace(found, evidence=_proof(p, start, beside), shown_by=start.shown_by)


def _proof(p: Pass, start: Start, beside: Against) -> str:
    """The value that FP32 has beside that of the format, where it went wrong."""
    at = start.shown_by.index
    low, wanted = p.lineage.samples[at], beside.reference(at)
    if wanted is None or wanted.shape != low.shape:
        return ""
    worst = int(torch.nan_to_num((low - wanted).abs(), nan=math.inf).argmax())
    scale = p.loss_scale if at in p.lineage.scaled else 1.0
    return (
        f"{start.shown_by.op} gives {float(low[worst]) / scale:.4g} where FP32 has"
        f" {float(wanted[worst]):.4g} (smallest {float(low.min()) / scale:.4g} and"
        f" {float(wanted.min()):.4g})"
    )


def _outside(op: OpRecord, p: Pass, reference: float) -> Cause:
    """An op that fails in 16 bits alone, and nothing upstream of it says why."""
    explanation, remedy = advice.outside(op, advice.in_words((p.name,)))
    return _cause("rounding", "rounding", p, op, reference, explanation, remedy, True)


def _silent(low: Pass, start: Start) -> Cause:
    names = advice.in_words((low.name,))
    explanation, remedy = advice.silent(
        start.op, start.shown_by, start.mechanism, start.error_before, start.error, names
    )
    is_gradient = start.op.phase == "backward" and start.mechanism == "underflow"
    kind = "gradient_underflow" if is_gradient else "silent_difference"
    largest = start.difference.reference_largest
    cause = _cause(kind, start.mechanism, low, start.op, largest, explanation, remedy, True)
    return replace(cause, shown_by=start.shown_by)


def _came_in(subject: OneBatch, leaf: str, passes: tuple[str, ...]) -> Cause:
    parameters = dict(subject.model.named_parameters())
    if leaf in parameters:
        return weights_cause(subject, leaf, "it reaches the loss")
    if leaf in dict(subject.model.named_buffers()):
        return buffer_cause(subject, leaf, "it reaches the loss", passes)
    return batch_cause(leaf, subject.batch_parts().get(leaf), passes)


def _unknown(p: Pass) -> Cause:
    return made(
        "invalid_operation",
        "invalid",
        (p.name,),
        evidence=f"loss {p.loss:.4g}, gradient norm {p.grad_norm:.4g}",
        explanation="The loss or a gradient is not finite, and no traced op made it so: it comes"
        " from outside of torch's ops, or the second run of the batch was another one.",
        remedy="Fix the generators that the loss function uses, so that a batch can be repeated.",
    )


def _cause(
    kind: str,
    mechanism: str,
    p: Pass,
    op: OpRecord,
    fp32_largest: float,
    explanation: str,
    remedy: str,
    is_precision: bool,
) -> Cause:
    share = "" if op.is_finite else f"{op.finite_fraction:.1%} of its result is finite, "
    return Cause(
        kind=kind,
        mechanism=mechanism,
        passes=(p.name,),
        is_precision=is_precision,
        severity="error",
        module=op.module,
        op=op,
        subject="",
        fp32_largest=fp32_largest,
        missing_bits=math.nan,
        evidence=f"{share}largest magnitude {op.largest:.4g} ({fp32_largest:.4g} in FP32)",
        explanation=explanation,
        remedy=remedy,
    )
