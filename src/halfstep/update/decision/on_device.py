"""The device's decision about a step: fused kernels skip by themselves, nothing waits.

`on_host` is the same decision in floats; a test compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from halfstep.update.decision.clipping import Joint
from halfstep.update.decision.measured import (
    Measured,
    MeasuredShape,
    StepNumbers,
    check_agreement,
    check_total,
    reason_for,
)
from halfstep.update.decision.multiplier import DeviceFactors, factors_on_device
from halfstep.update.decision.veto import Facts, ask, learns, name_of, tell
from halfstep.update.readback import Number, any_of, as_flag, is_one, on_device, side_by_side


@dataclass
class DeviceDecision:
    """What the device will decide about one optimizer.

    Attributes:
        measured: Its gradients.
        factors: 0-d tensors and floats; `found_inf` is about the optimizer's own gradients.
        skipped: 0-d float32, 1.0 if the update must not happen, for whatever reason.
        vetoed: One 0-d tensor of bool per condition.
        facts: What the conditions see, where there are any.
    """

    measured: Measured
    factors: DeviceFactors
    skipped: Tensor
    vetoed: list[Tensor] = field(default_factory=list)
    facts: Facts | None = None

    def numbers(self, next_scale: Number) -> list[Number]:
        """What the host reads later, in the order of `read_facts`.

        Args:
            next_scale: The loss scale after its update.
        """
        factors, measured = self.factors, self.measured
        flags = [factors.found_inf, self.skipped, *self.vetoed]
        numbers = [factors.grad_norm, factors.clip_coef, measured.loss_scale, next_scale]
        return [measured.agreement, *flags, *numbers, *measured.rates, *measured.sums]

    def counts(self) -> Number:
        """0 if the window says nothing about the loss scale: empty, or skipped though finite."""
        weight = self.measured.weight
        if self.skipped is self.factors.found_inf:
            return weight
        if not isinstance(weight, Tensor) and not weight:
            return 0.0
        says_something = self.skipped == self.factors.found_inf
        if not isinstance(weight, Tensor):
            return says_something
        return torch.logical_and(says_something, on_device(weight, says_something.device))


def decide_on_device(
    measured: Sequence[Measured], joint: Joint | None, together: bool
) -> list[DeviceDecision]:
    """The decision about every optimizer, in device tensors, side by side where they are several.

    Args:
        measured, joint, together: As for `halfstep.update.decision.on_host.decide_on_host`.

    Syncs: no.
    """
    found = _judge(measured, joint)
    for decision in found:
        if decision.measured.vetoes:
            _ask_vetoes(decision)
    if together and len(found) > 1:
        _skip_together(found)
    return found


def read_facts(
    values: Sequence[float], measured: MeasuredShape
) -> tuple[StepNumbers, str | None, float]:
    """Numbers, reason to skip and next loss scale.

    Args:
        values: `DeviceDecision.numbers`.
        measured: What they are of.
    """
    agreement, own, skipped, *rest = values
    check_agreement(agreement)
    vetoes = measured.vetoes
    flags, rest = rest[: len(vetoes)], rest[len(vetoes) :]
    grad_norm, coef, scale, next_scale, *rest = rest
    rates, (loss, weight, *metrics) = rest[: measured.num_rates], rest[measured.num_rates :]
    check_total(weight)
    reason = reason_for(own, weight)
    for condition, flag in zip(vetoes, flags, strict=True):
        if reason is None and flag:
            reason = f"veto: {name_of(condition)}"
    if reason is None and skipped:
        reason = "together"
    return StepNumbers(grad_norm, coef, scale, loss, weight, metrics, rates), reason, next_scale


def _judge(measured: Sequence[Measured], joint: Joint | None) -> list[DeviceDecision]:
    home = next(m.norm.device for m in measured if isinstance(m.norm, Tensor))
    norms = side_by_side([m.norm for m in measured], home)
    unit = side_by_side([m.unit for m in measured], home)
    largest = side_by_side([_largest(m.grads) for m in measured], home)
    assert isinstance(norms, Tensor)
    if joint is None:
        limit = _limits([m.max_norm for m in measured], home)
        factors = factors_on_device(norms, unit, limit, largest)
    else:
        norm = _joint_norm(norms, unit)
        factors = factors_on_device(norms, unit, float(joint.max_norm), largest, norm)
    each = zip(
        measured,
        _split(factors.found_inf, len(measured)),
        _split(factors.grad_norm, len(measured)),
        _split(factors.clip_coef, len(measured)),
        _split(factors.multiplier, len(measured)),
        strict=True,
    )
    return [_decision(m, *numbers) for m, *numbers in each]


def _decision(
    measured: Measured, found_inf: Number, norm: Number, coef: Number, multiplier: Number
) -> DeviceDecision:
    assert isinstance(measured.norm, Tensor)
    device = measured.norm.device
    found_inf, norm = as_flag(found_inf, device), on_device(norm, device)
    if isinstance(multiplier, Tensor):
        multiplier = multiplier.to(device)
    return DeviceDecision(measured, DeviceFactors(found_inf, norm, coef, multiplier), found_inf)


def _split(value: Number, count: int) -> Sequence[Number]:
    """What belongs to each of the optimizers: views of a vector, or the one number of all."""
    if isinstance(value, Tensor) and value.dim():
        return value.unbind()
    return [value] * count


def _largest(grads: Sequence[Tensor]) -> float:
    return min(torch.finfo(dtype).max for dtype in {grad.dtype for grad in grads})


def _limits(limits: Sequence[float | None], device: torch.device) -> float | Tensor | None:
    if all(limit is None for limit in limits):
        return None
    return side_by_side([math.inf if limit is None else float(limit) for limit in limits], device)


def _joint_norm(norms: Tensor, unit: Number) -> Tensor:
    true_norms = norms if is_one(unit) else norms / on_device(unit, norms.device)
    joined: Tensor = torch.linalg.vector_norm(true_norms.nan_to_num(0.0, 0.0, 0.0))
    return joined


def _skip_together(decisions: Sequence[DeviceDecision]) -> None:
    """Skip all where one has to be, unless its window is empty."""
    home = decisions[0].skipped.device
    causes = [
        decision.skipped
        if not isinstance(decision.measured.weight, Tensor)
        else torch.logical_and(
            decision.skipped, on_device(decision.measured.weight, decision.skipped.device)
        )
        for decision in decisions
        if isinstance(decision.measured.weight, Tensor) or decision.measured.weight
    ]
    bad = as_flag(any_of(causes), home)
    for decision in decisions:
        weight = decision.measured.weight
        there = bad.to(decision.skipped.device)
        if isinstance(weight, Tensor) or not weight:
            there = torch.maximum(decision.skipped, there)
        decision.skipped = there  # without a weight to doubt, one that is skipped skips all


def _ask_vetoes(decision: DeviceDecision) -> None:
    decision.facts = facts_on_device(decision.measured, decision.factors.grad_norm)
    decision.vetoed = [ask(c, decision.facts) for c in decision.measured.vetoes]
    skipped = any_of([decision.skipped, *decision.vetoed])
    assert isinstance(skipped, Tensor)
    decision.skipped = skipped


def tell_vetoes(decision: DeviceDecision) -> None:
    """Let conditions that learn know how the step ended, in device tensors."""
    facts, vetoes = decision.facts, decision.measured.vetoes
    if facts is None or not any(learns(condition) for condition in vetoes):
        return
    updated = torch.logical_not(decision.skipped)
    earlier = decision.factors.found_inf
    for index, (condition, flag) in enumerate(zip(vetoes, decision.vetoed, strict=True)):
        if learns(condition):
            tell(condition, facts, flag > earlier, updated)
        if index + 1 < len(vetoes):
            earlier = torch.maximum(earlier, flag)


def facts_on_device(measured: Measured, grad_norm: Tensor) -> Facts:
    """What conditions see, in 0-d float64 tensors on the device of the gradients.

    Args:
        measured: Of one optimizer.
        grad_norm: Its true norm.
    """
    device = grad_norm.device
    loss, weight = on_device(measured.sums[0], device), measured.weight
    if not is_one(weight):
        loss = loss / on_device(weight, device)
    return Facts(grad_norm, loss, on_device(measured.loss_scale, device), measured.name)
