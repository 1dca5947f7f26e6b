"""From traced passes to causes: producers, not propagators; numbers, not names of ops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from halfstep.records import Cause, OpRecord, PassError
from halfstep.records.diagnosis import CAUSE_KINDS
from halfstep.tools.doctor.causes import advice
from halfstep.tools.doctor.causes.blame import Start, start_of_difference, start_of_loss, tolerance
from halfstep.tools.doctor.causes.given import batch_cause, buffer_cause, made, weights_cause
from halfstep.tools.doctor.runs.one_batch import OneBatch
from halfstep.tools.doctor.runs.passes import Pass, capture
from halfstep.tracing.against import Against, format_of

_MUCH = 0.05  # share of the gradients' squared norm, or squared error, at which one matters


@dataclass
class Examination:
    """All that the causes are drawn from.

    Attributes:
        subject: Model and batch.
        passes: Finished passes by name.
        beside: Each 16-bit pass beside FP32.
        errors: The same as numbers.
    """

    subject: OneBatch
    passes: dict[str, Pass]
    beside: dict[str, Against] = field(default_factory=dict)
    errors: dict[str, PassError] = field(default_factory=dict)


def broken_passes(found: Examination) -> list[Cause]:
    """Why passes are not finite; those that FP32 shares are explained once, in FP32.

    Args:
        found: The passes.
    """
    fp32 = found.passes["fp32"]
    if not fp32.is_finite:
        return [_broken(found, fp32)]
    return [_broken(found, p) for p in found.passes.values() if not p.is_finite]


def silent_differences(found: Examination) -> list[Cause]:
    """What is finite but wrong, in BF16 and in FP16 with scaling.

    Args:
        found: The passes.
    """
    causes = []
    for name in ("bf16", "fp16 scaled"):
        low, beside = found.passes.get(name), found.beside.get(name)
        if low is None or beside is None:
            continue
        for end in _wrong_ends(found, low, beside):
            start = start_of_difference(low, beside, end)
            if start is not None:
                causes.append(_silent(low, start))
                break
    return causes


def poisoned_buffers(found: Examination) -> list[Cause]:
    """Buffers that a pass left not finite.

    Args:
        found: The passes.
    """
    names: dict[str, list[str]] = {}
    for p in found.passes.values():
        for name in p.bad_buffers:
            names.setdefault(name, []).append(p.name)
    return [
        replace(
            buffer_cause(
                found.subject, name, f"finite before the pass in {', '.join(passes)}", tuple(passes)
            ),
            is_precision="fp32" not in passes,
            mechanism="consequence",
        )
        for name, passes in names.items()
    ]


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
        key = (cause.kind, cause.module, cause.subject, op and (op.op, op.phase, op.occurrence))
        if key in by_place:
            passes = dict.fromkeys((*by_place[key].passes, *cause.passes))
            by_place[key] = replace(by_place[key], passes=tuple(passes))
        else:
            by_place[key] = cause
    return tuple(sorted(by_place.values(), key=_rank))


def _rank(cause: Cause) -> tuple[object, ...]:
    """What came in explains what ops do, the forward pass explains the backward pass."""
    is_given = cause.mechanism in ("input", "dtype")
    follows = cause.mechanism == "consequence"
    phase = 2 if cause.op is None else cause.op.phase == "backward"
    return (cause.severity != "error", not is_given, follows, phase, CAUSE_KINDS.index(cause.kind))


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
    if p.name != "fp32" and beside is not None and difference is not None:
        start = start_of_loss(p, beside, op.index)
        if start is not None:
            return _lost(op, p, start)
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


def _lost(failed: OpRecord, p: Pass, start: Start) -> Cause:
    names = advice.in_words((p.name,))
    rounding = start.mechanism != "underflow"
    explanation, remedy = advice.lost_to_zero(start.op, failed, names, rounding)
    kind = "rounding" if rounding else "underflow"
    largest = start.difference.reference_largest
    return _cause(kind, kind, p, start.op, largest, explanation, remedy, True)


def _silent(low: Pass, start: Start) -> Cause:
    names = advice.in_words((low.name,))
    after = start.difference.relative_error
    explanation, remedy = advice.silent(start.op, start.mechanism, start.error_before, after, names)
    is_gradient = start.op.phase == "backward" and start.mechanism == "underflow"
    kind = "gradient_underflow" if is_gradient else "silent_difference"
    largest = start.difference.reference_largest
    return _cause(kind, start.mechanism, low, start.op, largest, explanation, remedy, True)


def _wrong_ends(found: Examination, low: Pass, beside: Against) -> list[int]:
    """Results that matter and are further from FP32 than rounding explains, forward first."""
    limit = tolerance(low.policy.row)
    wrong = [
        end
        for end in (low.output_end, *low.ends)
        if end in beside.differences and limit < beside.differences[end].relative_error < math.inf
    ]
    if not low.is_finite:
        return [end for end in wrong if end is not None]
    error = found.errors[low.name]
    for row in error.gradients:
        # a bias before a BatchNorm has a gradient of pure noise: all wrong, but it is next to 0
        share_of_error = row.share * (row.relative_error / max(error.relative_error, 1e-30)) ** 2
        matters = row.share > _MUCH or share_of_error > _MUCH
        if matters and row.relative_error > limit and row.name in low.gradient_ends:
            wrong.append(low.gradient_ends[row.name])
    return [end for end in wrong if end is not None]


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
