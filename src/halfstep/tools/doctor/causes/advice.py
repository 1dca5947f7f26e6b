"""What the doctor says: one explanation and one remedy per kind of cause."""

from __future__ import annotations

import math
from collections.abc import Sequence

from halfstep.records import Cause, OpRecord

FORMAT_NAMES = {"fp32": "FP32", "bf16": "BF16", "fp16": "FP16", "fp16 scaled": "FP16 with scaling"}


def in_words(passes: tuple[str, ...]) -> str:
    """``FP16`` for all FP16 passes, ``BF16 and FP16`` for both formats.

    Args:
        passes: Names of passes.
    """
    names = [
        FORMAT_NAMES[name] for name in ("fp32", "bf16", "fp16", "fp16 scaled") if name in passes
    ]
    if "FP16" in names and "FP16 with scaling" in names:
        names.remove("FP16 with scaling")
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def where(op: OpRecord) -> str:
    """``aten.pow in Net.body (forward, float16, net.py:12)``.

    Args:
        op: The op.
    """
    return op.place


def keep_in_fp32(op: OpRecord) -> str:
    """How to run the place of an op in FP32.

    Args:
        op: The op.
    """
    name = op.module.partition(".")[2]
    what = f"the module {name}" if name else f"the ops at {op.source or 'this place'}"
    return f"Keep {what} in FP32"


def keep(
    op: OpRecord | None, islands: Sequence[str], own: str, healed: bool, bf16_is_healthy: bool
) -> str:
    """What to keep in FP32, as one pastes it, and what came of trying that.

    Args:
        op: That is to blame.
        islands: Module patterns.
        own: ``"loss"`` or ``"forward"`` where ops outside of modules belong into a block.
        healed: Whether the pass was right with that.
        bf16_is_healthy: Whether BF16 was seen to be right.
    """
    also = " BF16 is healthy on this batch." if bf16_is_healthy else ""
    if not healed:
        nothing = "No part of the model in FP32 was found that heals it"
        if islands:
            nothing = f"FP32 for {', '.join(islands)} was tried and does not heal it"
        return f"{nothing}; train in {'BF16' if bf16_is_healthy else 'FP32'}.{also}"
    parts = []
    if islands:
        table = ", ".join(f'"{name}" = "fp32"' for name in islands)
        python = ", ".join(f'"{name}": "fp32"' for name in islands)
        parts.append(
            f"Keep {', '.join(islands)} in FP32: modules={{{python}}} in hs.Policy, or"
            f" modules = {{ {table} }} in precision.toml"
        )
    if own:
        where_ = "the loss function" if own == "loss" else "the model's own forward"
        at = f" at {op.source}" if op is not None and op.source else ""
        parts.append(
            f"{'and put' if parts else 'Put'} `with hs.fp32():` around the ops of {where_}{at}"
        )
    return f"{', '.join(parts)}. Tried on this batch: healthy.{also}"


def overflow(op: OpRecord, largest: float, missing_bits: float, formats: str) -> tuple[str, str]:
    """Explanation and remedy of an overflow.

    Args:
        op: The op.
        largest: Largest magnitude of the result in FP32.
        missing_bits: Powers of two beyond the format; NaN if an intermediate value overflowed.
        formats: In words.
    """
    if math.isnan(missing_bits):
        text = (
            f"A value inside of the op goes beyond {formats}'s range, though its result"
            f" (largest {largest:.4g}) would fit."
        )
    else:
        text = (
            f"The result is up to {largest:.4g}, which is beyond the largest {op.dtype}:"
            f" {missing_bits:.1f} bits of headroom are missing."
        )
    if op.phase == "forward":
        text += " No loss scale helps: it is in the forward pass."
    remedy = f"{keep_in_fp32(op)}, or make the values smaller before this op."
    return text, remedy


def beyond_fp32(op: OpRecord, largest: float) -> tuple[str, str]:
    """Explanation and remedy of an overflow that FP32 has too.

    Args:
        op: The op.
        largest: Of the result in float64.
    """
    return (
        f"The result is up to {largest:.4g}, beyond FP32 itself (3.4e38). This is not a precision"
        " problem: the values explode.",
        "Look at what feeds this op: initialisation, learning rate, a missing normalisation, an"
        " exponential of something that is not bounded.",
    )


def invalid(op: OpRecord) -> tuple[str, str]:
    """Explanation and remedy of an operation without a finite result.

    Args:
        op: The op.
    """
    return (
        "The op has no finite result for these inputs, in float64 neither (0/0, inf - inf, the"
        " logarithm or the root of a negative number, a row that is masked as a whole, the slope"
        " of a root at 0). This is not a precision problem: no format and no loss scale helps.",
        f"Guard the operation at {op.source or 'this place'}: add an epsilon inside of it, clamp"
        " its input, or leave out rows that are masked as a whole.",
    )


def lost(start: OpRecord, failed: OpRecord, formats: str, rounding: bool) -> tuple[str, str]:
    """Explanation and remedy where values that FP32 does not have break a later op.

    Args:
        start: Where they are made.
        failed: The op that has no finite result for them.
        formats: In words.
        rounding: Whether by rounding rather than underflow.
    """
    why = (
        f"{formats} cannot tell values apart here that FP32 can: what is left of their difference"
        " is 0 or has the wrong sign"
        if rounding
        else f"Values that are smaller than {formats} can hold become 0 here"
    )
    return (
        f"{why}, and {where(failed)} has no finite result for that. In FP32 it has: this is a"
        " matter of precision.",
        f"{keep_in_fp32(start)}, or use a larger epsilon (1e-8 is 0 in FP16; 1e-4 is not).",
    )


def outside(op: OpRecord, formats: str) -> tuple[str, str]:
    """Explanation and remedy where an op fails in 16 bits only.

    Args:
        op: The op.
        formats: In words.
    """
    return (
        f"The op has no finite result for the inputs that {formats} gives it; for those of FP32 it"
        " has one.",
        f"{keep_in_fp32(op)}.",
    )


def silent(
    op: OpRecord, shown_by: OpRecord, mechanism: str, before: float, after: float, formats: str
) -> tuple[str, str]:
    """Explanation and remedy of a difference from FP32 without inf or NaN at the end.

    Args:
        op: Where it starts.
        shown_by: The op whose result is visibly wrong.
        mechanism: How it comes about.
        before, after: Relative error of that op's inputs and of its result.
        formats: In words.
    """
    how = {
        "overflow": "overflows to inf, and a later op turns that into a finite number",
        "underflow": "underflows to 0",
        "rounding": "loses its digits to rounding",
    }[mechanism]
    error = "everything" if math.isinf(after) else f"{after:.0%} of the value"
    shown = "" if op.index == shown_by.index else f"; it shows in {where(shown_by)}"
    return (
        f"Nothing is inf or NaN at the end, but the numbers are wrong: in {formats} the result"
        f" {how}{shown} (error {error}, {before:.2g} in its inputs).",
        f"{keep_in_fp32(op)}, or use torch's own op for it, which computes in FP32 inside.",
    )


_SENTENCES = {
    "cannot_run": "{formats} cannot run this model",
    "bad_batch": "The batch is not finite: {subject}",
    "bad_weights": "A weight is not finite: {subject}",
    "poisoned_buffer": "A buffer is not finite: {subject}",
    "invalid_operation": "{place} has no finite result",
    "overflow": "{formats} overflows in {place}",
    "underflow": "{formats} underflows in {place}",
    "rounding": "{formats} loses its digits in {place}",
    "silent_difference": "{formats} is silently wrong from {place} on",
    "gradient_underflow": "{formats} loses gradients to underflow, first in {place}",
    "loss_too_large": "The loss is too large for {formats} at any loss scale from 1 on",
    "low_precision_weights": "Weights are kept in 16 bits: {subject}",
    "half_loss": "The loss is FP16",
    "lost_updates": "Updates are lost: {subject}",
    "state_stops": "State in 16 bits stops moving: {subject}",
    "state_drifts": "{formats} drifts away from FP32 in {subject}",
    "training_differs": "{formats} trains differently from FP32",
}


def headline(causes: Sequence[Cause], finished: tuple[str, ...]) -> str:
    """The verdict in one sentence.

    Args:
        causes: In order.
        finished: Names of the passes that ran to their end.
    """
    errors = [cause for cause in causes if cause.severity == "error"]
    if not errors:
        searching = any(cause.kind == "scale_searching" for cause in causes)
        extra = "; the loss scale is still searching, which is normal at the start"
        return f"Healthy in {in_words(finished)}{extra if searching else ''}."
    first = errors[0]
    place = first.place or (f"the backward of {first.module}" if first.module else "")
    text = _SENTENCES[first.kind].format(
        formats=in_words(first.passes), place=place, subject=first.subject
    )
    if first.kind in ("invalid_operation", "overflow") and not first.is_precision:
        also = "" if first.kind == "overflow" else ", in FP32 too"
        text += f"{also}: not a precision problem"
    others = len(errors) - 1
    return f"{text}{f' ({others} more below)' if others else ''}."
