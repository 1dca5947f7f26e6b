"""The device's decision about a step: fused kernels hold by themselves, nothing waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from halfstep.update.attempt import Numbers, reason_for
from halfstep.update.clipping import Joint
from halfstep.update.lane import Share
from halfstep.update.multiplier import Decision, decide_on_device
from halfstep.update.readback import Number, on_device
from halfstep.update.scale_updates import any_of
from halfstep.update.veto import Condition, Facts, ask, name_of, tell
from halfstep.update.window import check_total


@dataclass
class Pending:
    """What the device will decide about one share.

    Attributes:
        share: Which.
        decision: Device tensors; its `found_inf` is about the share's own gradients.
        held: 0-d float32, 1.0 if the update must not happen, for whatever reason.
        vetoed: One 0-d tensor of bool per condition.
        scale: The loss scale of the window, copied before it moves.
    """

    share: Share
    decision: Decision[Tensor]
    held: Tensor
    vetoed: list[Tensor]
    scale: Tensor

    def facts(self) -> list[Number]:
        """What the host reads later, without the window's sums."""
        decision = self.decision
        flags = [decision.found_inf, self.held, *self.vetoed]
        return [*flags, decision.grad_norm, decision.clip_coef, self.scale]

    def counts(self) -> Number:
        """0 if the window says nothing about the loss scale: empty, or held though finite."""
        weight = self.share.window.weight
        if self.held is self.decision.found_inf:
            return weight if isinstance(weight, Tensor) else float(weight != 0)
        says_something = (self.held == 0) | (self.decision.found_inf > 0)
        return says_something & (on_device(weight, self.held.device) != 0)


def decide_later(shares: Sequence[Share], joint: Joint | None, together: bool) -> list[Pending]:
    """The decision about every share, in device tensors.

    Args:
        shares, joint, together: As for `halfstep.update.decided.decide`.

    Syncs: no.
    """
    norm = _joint_norm(shares) if joint is not None else None
    found = [_judge(share, joint, norm) for share in shares]
    for pending in found:
        if pending.share.lane.vetoes:
            _ask_vetoes(pending)
    if together and len(found) > 1:
        bad = any_of([pending.held * _has_weight(pending) for pending in found])
        for pending in found:
            pending.held = torch.maximum(pending.held, bad.to(pending.held.device))
    for pending in found:
        if pending.share.lane.vetoes:
            _tell_vetoes(pending)
    return found


def read_facts(
    values: Sequence[float], vetoes: Sequence[Condition]
) -> tuple[Numbers, str | None, float]:
    """Numbers, reason to hold and next loss scale.

    Args:
        values: `Pending.facts`, the loss scale after its update, and the window's sums.
        vetoes: The optimizer's.
    """
    own, held, *rest = values
    flags, rest = rest[: len(vetoes)], rest[len(vetoes) :]
    grad_norm, coef, scale, next_scale, loss, weight, *metrics = rest
    check_total(weight)
    reason = reason_for(own, weight)
    for condition, flag in zip(vetoes, flags, strict=True):
        if reason is None and flag:
            reason = f"veto: {name_of(condition)}"
    if reason is None and held:
        reason = "together"
    return Numbers(grad_norm, coef, scale, loss, weight, metrics), reason, next_scale


def _judge(share: Share, joint: Joint | None, joint_norm: Tensor | None) -> Pending:
    assert isinstance(share.norm, Tensor)
    unit = on_device(share.unit, share.norm.device)
    limit = joint.max_norm if joint is not None else share.lane.max_norm
    decision = decide_on_device(share.norm, unit, limit, share.grads, joint_norm)
    return Pending(share, decision, decision.found_inf, [], share.lane.loss_scale.value.clone())


def _joint_norm(shares: Sequence[Share]) -> Tensor:
    home = next(share.norm.device for share in shares if isinstance(share.norm, Tensor))
    norms = [on_device(s.norm, home) / on_device(s.unit, home) for s in shares]
    finite = [torch.where(torch.isfinite(norm), norm, 0.0) for norm in norms]
    joined: Tensor = torch.linalg.vector_norm(torch.stack(finite))
    return joined


def _has_weight(pending: Pending) -> Tensor:
    return (on_device(pending.share.window.weight, pending.held.device) != 0).float()


def _ask_vetoes(pending: Pending) -> None:
    facts = _as_facts(pending)
    pending.vetoed = [ask(condition, facts) for condition in pending.share.lane.vetoes]
    pending.held = any_of([pending.held, *pending.vetoed])


def _tell_vetoes(pending: Pending) -> None:
    facts = _as_facts(pending)
    is_first = pending.decision.found_inf == 0
    for condition, flag in zip(pending.share.lane.vetoes, pending.vetoed, strict=True):
        tell(condition, facts, flag & is_first, pending.held == 0)
        is_first = is_first & ~flag


def _as_facts(pending: Pending) -> Facts:
    norm, window = pending.decision.grad_norm, pending.share.window
    total, weight = (on_device(value, norm.device) for value in window.sums()[:2])
    scale = on_device(pending.scale, norm.device)
    return Facts(norm, total / weight, scale, pending.share.lane.name)
