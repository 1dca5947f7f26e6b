"""The host's decision about a step, for optimizers that cannot skip by themselves.

`on_device` is the same decision in device tensors; a test compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import NamedTuple

import torch
from torch import Tensor

from halfstep.update.decision.clipping import Joint
from halfstep.update.decision.measured import Measured, StepNumbers, check_total, reason_for
from halfstep.update.decision.multiplier import Factors, factors_on_host
from halfstep.update.decision.veto import Facts, ask, name_of, tell
from halfstep.update.readback import Number, read_now


@dataclass
class HostDecision:
    """What the host decided about one optimizer.

    Attributes:
        measured: Its gradients.
        factors: Their multiplier, and whether they allow the update by themselves.
        numbers: For the record.
        reason: Why the update is skipped, or ``None``.
    """

    measured: Measured
    factors: Factors[float]
    numbers: StepNumbers
    reason: str | None


def decide_on_host(
    measured: Sequence[Measured], joint: Joint | None, together: bool
) -> list[HostDecision]:
    """The decision about every optimizer, in one wait.

    Args:
        measured: Of the optimizers that step together.
        joint: A limit of the norm over all of them.
        together: Whether all are skipped where one has to be.

    Syncs: once, if anything is on a device.
    """
    read = _read(measured)
    norm = _joint_norm(read) if joint is not None else None
    decisions = [_judge(m, numbers, joint, norm) for m, numbers in zip(measured, read, strict=True)]
    asked = [d for d in decisions if d.measured.grads and d.measured.vetoes]
    for decision in asked:
        _ask_vetoes(decision)
    if together and any(_spreads(decision.reason) for decision in decisions):
        for decision in decisions:
            decision.reason = decision.reason or "together"
    return decisions


class _Read(NamedTuple):
    norm: float
    unit: float
    left_by_clip: float
    scale: float
    loss: float
    weight: float
    metrics: list[float]


def _read(measured: Sequence[Measured]) -> list[_Read]:
    rows = [_facts(m) for m in measured]
    values = iter(read_now(rows[0] if len(rows) == 1 else list(chain.from_iterable(rows))))
    found = []
    for row in rows:
        norm, unit, left, scale, loss, weight, *metrics = islice(values, len(row))
        check_total(weight)
        found.append(_Read(norm, unit, left, scale, loss, weight, metrics))
    return found


def _facts(measured: Measured) -> list[Number]:
    left = measured.norm if measured.left_by_clip is None else measured.left_by_clip
    return [measured.norm, measured.unit, left, measured.loss_scale, *measured.sums]


def _joint_norm(read: Sequence[_Read]) -> float:
    norms = [r.norm / r.unit for r in read if r.weight]
    return math.hypot(*(norm for norm in norms if math.isfinite(norm)))


def _judge(
    measured: Measured, read: _Read, joint: Joint | None, joint_norm: float | None
) -> HostDecision:
    grads = measured.grads
    if read.weight == 0 or not grads:
        factors = Factors(0.0, math.nan if grads else 0.0, 1.0, 1.0)
    elif measured.left_by_clip is None or not math.isfinite(read.norm):
        limit = joint.max_norm if joint is not None else measured.max_norm
        factors = factors_on_host(read.norm, read.unit, limit, grads, joint_norm)
    else:
        factors = factors_on_host(read.left_by_clip, 1.0, None, grads)
        coef = min(1.0, read.left_by_clip * read.unit / read.norm) if read.norm else 1.0
        factors = replace(factors, grad_norm=read.norm / read.unit, clip_coef=coef)
    numbers = StepNumbers(
        factors.grad_norm, factors.clip_coef, read.scale, read.loss, read.weight, read.metrics
    )
    reason = reason_for(factors.found_inf, read.weight)
    return HostDecision(measured, factors, numbers, reason if grads else "no_gradient")


def _spreads(reason: str | None) -> bool:
    """Whether a reason to skip is one for the other optimizers too."""
    return reason not in (None, "empty_window", "no_gradient")


def _ask_vetoes(decision: HostDecision) -> None:
    facts = _as_facts(decision)
    for condition in decision.measured.vetoes:
        if decision.reason is None and bool(ask(condition, facts)):
            decision.reason = f"veto: {name_of(condition)}"


def tell_vetoes(decision: HostDecision) -> None:
    """Let conditions that learn know how the step ended."""
    if not (decision.measured.grads and decision.measured.vetoes):
        return
    facts = _as_facts(decision)
    updated = torch.tensor(decision.reason is None)
    for condition in decision.measured.vetoes:
        held = torch.tensor(decision.reason == f"veto: {name_of(condition)}")
        tell(condition, facts, held.to(facts.loss.device), updated.to(facts.loss.device))


def _as_facts(decision: HostDecision) -> Facts:
    numbers = decision.numbers
    loss = numbers.loss_total / numbers.weight if numbers.weight else math.nan
    device = decision.measured.grads[0].device

    def tensor(value: float) -> Tensor:
        return torch.full((), value, dtype=torch.float64, device=device)

    return Facts(
        tensor(numbers.grad_norm), tensor(loss), tensor(numbers.scale), decision.measured.name
    )
