"""What one op of a pass did: overflow, no result, lost digits; numbers, not names of ops."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from halfstep.records import Cause, OpRecord
from halfstep.tools.doctor.causes import advice
from halfstep.tools.doctor.causes.blame import Start, start_of_invalid
from halfstep.tools.doctor.causes.given import batch_cause, buffer_cause, made, some, weights_cause
from halfstep.tools.doctor.examination import Examination
from halfstep.tools.doctor.runs.one_batch import OneBatch
from halfstep.tools.doctor.runs.passes import Pass, capture
from halfstep.tracing.against import Against, format_of


def with_buffers(cause: Cause, p: Pass) -> Cause:
    """A cause with the buffers that it leaves not finite.

    Args:
        cause: The cause.
        p: The pass that shows it.
    """
    if not p.bad_buffers:
        return cause
    text = f"buffers that this leaves not finite, in FP32 too: {some(p.bad_buffers)}"
    joined = f"{cause.evidence}; {text}" if cause.evidence else text
    return replace(
        cause,
        evidence=joined,
        remedy=f"{cause.remedy} Engine(..., buffers='rollback') keeps buffers clean on a skip.",
    )


def broken(found: Examination, p: Pass) -> Cause:
    """Why the loss or a gradient of a pass is not finite.

    Args:
        found: The passes.
        p: One that is not finite.
    """
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


def silent(low: Pass, start: Start) -> Cause:
    """A difference from FP32 without inf or NaN at the end.

    Args:
        low: The pass.
        start: Where it starts.
    """
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
