"""Which weights an update leaves as they were, to the bit."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from halfstep.records import Cause, LostUpdates
from halfstep.tools.doctor.causes.given import ALL, made
from halfstep.tools.doctor.runs.one_batch import OneBatch
from halfstep.tools.doctor.runs.passes import Pass
from halfstep.tracing.op_trace import dtype_name

_MUCH = 0.1  # of the gradients' squared norm: from there on it is a cause


@dataclass(frozen=True)
class TriedUpdate:
    """One update on trial.

    Attributes:
        lost: Per parameter.
        state: Dtype of the optimizer's state of each parameter, as ``float32``.
        still_zero: Parameters whose gradient is 0 in FP32, before the update and after it.
    """

    lost: tuple[LostUpdates, ...]
    state: dict[str, str]
    still_zero: tuple[str, ...] = ()


def try_update(subject: OneBatch, fp32: Pass) -> TriedUpdate:
    """One update by the recipe's optimizer with the FP32 pass's gradients, then everything back.

    Args:
        subject: Model, batch, optimizer.
        fp32: Whose true gradients to use; they have to be finite.

    Syncs: yes.
    """
    parameters = subject.parameters
    before = {name: p.detach().clone() for name, p in parameters.items()}
    optimizers = subject.optimizers
    states = [copy.deepcopy(each.state_dict()) for each in optimizers]
    try:
        for name, p in parameters.items():
            gradient = fp32.gradients[name]
            p.grad = None if gradient is None else gradient.to(p.dtype)
        for each in optimizers:
            each.step()
        state = {p: kept for each in optimizers for p, kept in each.state.items()}
        return TriedUpdate(
            lost=tuple(
                _compared(name, before[name], p, fp32.gradients[name], fp32.grad_norm)
                for name, p in parameters.items()
            ),
            state={name: _state_dtypes(state.get(p, {})) for name, p in parameters.items()},
            still_zero=_still_zero(subject, fp32),
        )
    finally:
        with torch.no_grad():
            for name, p in parameters.items():
                p.copy_(before[name])
        for each, before_it in zip(optimizers, states, strict=True):
            each.load_state_dict(before_it)
        subject.reset()


def _still_zero(subject: OneBatch, fp32: Pass) -> tuple[str, ...]:
    """A gradient of 0 is no dead weight if the first update of another one ends it (LoRA)."""
    zero = [n for n, g in fp32.gradients.items() if g is not None and not bool(g.any())]
    if not zero:
        return ()
    subject.run(fp32.policy)
    parameters = subject.parameters
    return tuple(n for n in zero if (g := parameters[n].grad) is None or not bool(g.any()))


def _compared(
    name: str, before: Tensor, after: Tensor, gradient: Tensor | None, norm: float
) -> LostUpdates:
    count = max(1, before.numel())
    moved = before != after.detach()
    size = 0.0 if gradient is None else float(gradient.double().norm())
    share = (size / norm) ** 2 if norm else 0.0
    wanted = torch.zeros_like(moved) if gradient is None else gradient != 0
    return LostUpdates(
        name=name,
        dtype=dtype_name(before.dtype),
        changed_fraction=float(moved.sum()) / count,
        lost_fraction=float((wanted & ~moved).sum()) / count,
        no_gradient_fraction=float((~wanted).sum()) / count,
        gradient_share=share,
    )


def lost_causes(lost: Sequence[LostUpdates]) -> list[Cause]:
    """Parameters most of whose updates vanish.

    Args:
        lost: Per parameter.
    """
    bad = [row for row in lost if row.is_lost]
    if sum(row.gradient_share for row in bad) < _MUCH:
        return []
    worst = max(bad, key=lambda row: row.lost_fraction)
    return [
        made(
            "lost_updates",
            "rounding",
            ALL,
            is_precision=True,
            subject=worst.name,
            evidence=f"{worst.lost_fraction:.0%} of {worst.name} ({worst.dtype}), and"
            f" {len(bad) - 1} more parameters, are the same to the bit after an update",
            explanation="The update is smaller than half the spacing of the weights' format, so"
            " that it changes nothing, however often it is made.",
            remedy="Keep the weights in FP32 (autocast makes 16-bit copies by itself), or raise the"
            " learning rate.",
        )
    ]


def _state_dtypes(state: Mapping[str, Any]) -> str:
    tensors = [t for t in state.values() if isinstance(t, Tensor) and t.dim() > 0]
    return ", ".join(sorted({dtype_name(t.dtype) for t in tensors}))
