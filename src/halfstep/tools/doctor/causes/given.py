"""What is wrong before anything runs: weights, buffers, their dtypes, the batch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from halfstep.records import Cause
from halfstep.tools.doctor.runs.one_batch import OneBatch

ALL = ("fp32", "bf16", "fp16", "fp16 scaled")


def given_causes(subject: OneBatch) -> list[Cause]:
    """Weights that are not finite, buffers that hold NaN, weights in 16 bits.

    Args:
        subject: The model.
    """
    found = []
    for name, p in subject.model.named_parameters():
        if bad := _bad_values(p):
            found.append(weights_cause(subject, name, bad))
    for name, buffer in subject.model.named_buffers():
        if buffer.is_floating_point() and bool(buffer.isnan().any()):
            found.append(buffer_cause(subject, name, _bad_values(buffer), ALL))
    found += _half_weights(subject)
    return found


def weights_cause(subject: OneBatch, name: str, evidence: str) -> Cause:
    """A weight that is not finite before the first update.

    Args:
        subject: The model.
        name: Of the parameter.
        evidence: How many values.
    """
    return made(
        "bad_weights",
        "input",
        ALL,
        module=subject.owner(name),
        subject=name,
        evidence=evidence,
        explanation=f"The weight {name} is not finite before the first op runs.",
        remedy="Load an older checkpoint, or look at how this weight is initialised; an inf in it"
        " often comes from calling .half() on a model with values beyond 65504.",
    )


def buffer_cause(subject: OneBatch, name: str, evidence: str, passes: tuple[str, ...]) -> Cause:
    """A buffer that is not finite.

    Args:
        subject: The model.
        name: Of the buffer.
        evidence: How many values.
        passes: Where it is so.
    """
    return made(
        "poisoned_buffer",
        "input",
        passes,
        module=subject.owner(name),
        subject=name,
        evidence=evidence,
        explanation=f"The buffer {name} is not finite. A skipped step does not put it back, and"
        " from then on every evaluation is wrong.",
        remedy="Use Engine(..., buffers='rollback') so that a skipped window leaves no trace in"
        " buffers, and reset this one (module.reset_running_stats()) or load an older checkpoint.",
    )


def batch_cause(name: str, tensor: Tensor | None, passes: tuple[str, ...]) -> Cause:
    """A part of the batch that is not finite and reaches the loss.

    Args:
        name: Of the part.
        tensor: Its values.
        passes: Where it does.
    """
    evidence = ""
    if tensor is not None:
        samples = _bad_samples(tensor)
        evidence = f"{samples}: {_bad_values(tensor)}" if samples else _bad_values(tensor)
    return made(
        "bad_batch",
        "input",
        passes,
        subject=name,
        evidence=evidence,
        explanation=f"{name} holds values that are not finite, and they reach the loss.",
        remedy="Clean the data (or leave such samples out); no format and no loss scale helps.",
    )


def made(
    kind: str,
    mechanism: str,
    passes: tuple[str, ...],
    *,
    evidence: str,
    explanation: str,
    remedy: str,
    is_precision: bool = False,
    severity: str = "error",
    module: str = "",
    subject: str = "",
) -> Cause:
    """A cause without an op.

    Args:
        kind, mechanism, passes, evidence, explanation, remedy: As in `Cause`.
        is_precision, severity, module, subject: As in `Cause`.
    """
    return Cause(
        kind=kind,
        mechanism=mechanism,
        passes=passes,
        is_precision=is_precision,
        severity=severity,
        module=module,
        op=None,
        subject=subject,
        fp32_largest=math.nan,
        missing_bits=math.nan,
        evidence=evidence,
        explanation=explanation,
        remedy=remedy,
    )


def _bad_values(tensor: Tensor) -> str:
    """``3 of 64 values: 1 NaN, 2 inf, the first at [0, 5]``; empty where all are finite."""
    if not tensor.is_floating_point():
        return ""
    bad = ~torch.isfinite(tensor.detach())
    count = int(bad.sum())
    if not count:
        return ""
    nans = int(tensor.detach().isnan().sum())
    kinds = [f"{nans} NaN"] * (nans > 0) + [f"{count - nans} inf"] * (count > nans)
    first = bad.nonzero()[0].tolist()
    return f"{count} of {tensor.numel()} values: {', '.join(kinds)}, the first at {first}"


def _bad_samples(tensor: Tensor) -> str:
    """``sample 3 of 8``, or how many; empty for a tensor that has no samples."""
    if tensor.dim() == 0 or not tensor.is_floating_point():
        return ""
    rows = (~torch.isfinite(tensor.detach())).reshape(len(tensor), -1).any(1).nonzero().flatten()
    numbers = rows.tolist()
    if len(numbers) == 1:
        return f"sample {numbers[0]} of {len(tensor)} (counted from 0)"
    return f"{len(numbers)} of {len(tensor)} samples, the first is {numbers[0]} (counted from 0)"


def some(names: Sequence[str], most: int = 3) -> str:
    """The first names of a list, and how many more there are.

    Args:
        names: At least one.
        most: How many to name.
    """
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def _half_weights(subject: OneBatch) -> Iterable[Cause]:
    """Trainable weights in 16 bits: updates get lost and FP16 gradients cannot be unscaled."""
    for dtype in (torch.float16, torch.bfloat16):
        names = [n for n, p in subject.parameters.items() if p.dtype is dtype]
        if not names:
            continue
        bits = {torch.float16: 11, torch.bfloat16: 8}[dtype]
        name = str(dtype).removeprefix("torch.")
        explanation = (
            f"{len(names)} trainable weights are {name}: an update smaller than 1/{2**bits} of a"
            " weight changes nothing"
        )
        if dtype is torch.float16:
            explanation += f", gradients cannot be unscaled in place{_vanishing_eps(subject)}"
        yield made(
            "low_precision_weights",
            "rounding",
            ALL,
            is_precision=True,
            module=subject.owner(names[0]),
            subject=names[0],
            evidence=f"the first is {names[0]}",
            explanation=f"{explanation}.",
            remedy="Keep the weights in FP32 (model.float()) and let autocast choose the format of"
            " each op; batches too.",
        )


def _vanishing_eps(subject: OneBatch) -> str:
    groups = [group for each in subject.optimizers for group in each.param_groups]
    eps = next((g["eps"] for g in groups if isinstance(g.get("eps"), float)), None)
    if eps is None or eps > 2.0**-25:
        return ""
    return f", and the optimizer's eps={eps:g} is 0 in FP16, so that it divides by 0"
