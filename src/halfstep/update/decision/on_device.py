"""The device's decision about a step: fused kernels skip by themselves, nothing waits.

`on_host` is the same decision in floats; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from halfstep.update.decision.clipping import Joint
from halfstep.update.decision.measured import Measured, StepNumbers, check_total, reason_for
from halfstep.update.decision.multiplier import Factors, factors_on_device
from halfstep.update.decision.veto import Condition, Facts, ask, name_of, tell
from halfstep.update.readback import Number, any_of, on_device


@dataclass
class DeviceDecision:
    """What the device will decide about one optimizer.

    Attributes:
        measured: Its gradients.
        factors: Device tensors; their `found_inf` is about the optimizer's own gradients.
        skipped: 0-d float32, 1.0 if the update must not happen, for whatever reason.
        vetoed: One 0-d tensor of bool per condition.
        scale: The loss scale of the window, copied before it moves.
    """

    measured: Measured
    factors: Factors[Tensor]
    skipped: Tensor
    vetoed: list[Tensor]
    scale: Tensor

    def facts(self) -> list[Number]:
        """What the host reads later, without the window's sums."""
        factors = self.factors
        flags = [factors.found_inf, self.skipped, *self.vetoed]
        return [*flags, factors.grad_norm, factors.clip_coef, self.scale]

    def counts(self) -> Number:
        """0 if the window says nothing about the loss scale: empty, or skipped though finite."""
        weight = self.measured.weight
        if self.skipped is self.factors.found_inf:
            return weight if isinstance(weight, Tensor) else float(weight != 0)
        says_something = (self.skipped == 0) | (self.factors.found_inf > 0)
        return says_something & (on_device(weight, self.skipped.device) != 0)


def decide_on_device(
    measured: Sequence[Measured], joint: Joint | None, together: bool
) -> list[DeviceDecision]:
    """The decision about every optimizer, in device tensors.

    Args:
        measured, joint, together: As for `halfstep.update.decision.on_host.decide_on_host`.

    Syncs: no.
    """
    norm = _joint_norm(measured) if joint is not None else None
    found = [_judge(m, joint, norm) for m in measured]
    for decision in found:
        if decision.measured.vetoes:
            _ask_vetoes(decision)
    if together and len(found) > 1:
        bad = any_of([decision.skipped * _has_weight(decision) for decision in found])
        for decision in found:
            decision.skipped = torch.maximum(decision.skipped, bad.to(decision.skipped.device))
    return found


def read_facts(
    values: Sequence[float], vetoes: Sequence[Condition]
) -> tuple[StepNumbers, str | None, float]:
    """Numbers, reason to skip and next loss scale.

    Args:
        values: `DeviceDecision.facts`, the loss scale after its update, and the window's sums.
        vetoes: The optimizer's.
    """
    own, skipped, *rest = values
    flags, rest = rest[: len(vetoes)], rest[len(vetoes) :]
    grad_norm, coef, scale, next_scale, loss, weight, *metrics = rest
    check_total(weight)
    reason = reason_for(own, weight)
    for condition, flag in zip(vetoes, flags, strict=True):
        if reason is None and flag:
            reason = f"veto: {name_of(condition)}"
    if reason is None and skipped:
        reason = "together"
    return StepNumbers(grad_norm, coef, scale, loss, weight, metrics), reason, next_scale


def _judge(measured: Measured, joint: Joint | None, joint_norm: Tensor | None) -> DeviceDecision:
    assert isinstance(measured.norm, Tensor)
    unit = on_device(measured.unit, measured.norm.device)
    limit = joint.max_norm if joint is not None else measured.max_norm
    factors = factors_on_device(measured.norm, unit, limit, measured.grads, joint_norm)
    return DeviceDecision(measured, factors, factors.found_inf, [], measured.loss_scale.clone())


def _joint_norm(measured: Sequence[Measured]) -> Tensor:
    home = next(m.norm.device for m in measured if isinstance(m.norm, Tensor))
    norms = [on_device(m.norm, home) / on_device(m.unit, home) for m in measured]
    finite = [torch.where(torch.isfinite(norm), norm, 0.0) for norm in norms]
    joined: Tensor = torch.linalg.vector_norm(torch.stack(finite))
    return joined


def _has_weight(decision: DeviceDecision) -> Tensor:
    return (on_device(decision.measured.weight, decision.skipped.device) != 0).float()


def _ask_vetoes(decision: DeviceDecision) -> None:
    facts = _as_facts(decision)
    decision.vetoed = [ask(condition, facts) for condition in decision.measured.vetoes]
    decision.skipped = any_of([decision.skipped, *decision.vetoed])


def tell_vetoes(decision: DeviceDecision) -> None:
    """Let conditions that learn know how the step ended, in device tensors."""
    if not decision.measured.vetoes:
        return
    facts = _as_facts(decision)
    is_first = decision.factors.found_inf == 0
    for condition, flag in zip(decision.measured.vetoes, decision.vetoed, strict=True):
        tell(condition, facts, flag & is_first, decision.skipped == 0)
        is_first = is_first & ~flag


def _as_facts(decision: DeviceDecision) -> Facts:
    norm, measured = decision.factors.grad_norm, decision.measured
    total, weight = (on_device(value, norm.device) for value in measured.sums[:2])
    scale = on_device(decision.scale, norm.device)
    return Facts(norm, total / weight, scale, measured.name)
