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
from halfstep.update.decision.measured import (
    Measured,
    StepNumbers,
    check_agreement,
    check_total,
    reason_for,
)
from halfstep.update.decision.multiplier import Factors, factors_on_host
from halfstep.update.decision.on_device import facts_on_device
from halfstep.update.decision.veto import Facts, ask, learns, name_of, tell
from halfstep.update.readback import Number, is_one, on_device, read_now


@dataclass
class HostDecision:
    """What the host decided about one optimizer.

    Attributes:
        measured: Its gradients.
        factors: Their multiplier, and whether they allow the update by themselves.
        numbers: For the record.
        reason: Why the update is skipped, or ``None``.
        vetoed: Answers of the conditions, where a device has given them before the one wait.
    """

    measured: Measured
    factors: Factors
    numbers: StepNumbers
    reason: str | None
    vetoed: list[float] | None = None


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
    asked = [d for d in decisions if d.measured.has_gradients and d.measured.vetoes]
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
    vetoed: list[float] | None
    rates: list[float]
    loss: float
    weight: float
    metrics: list[float]


def _read(measured: Sequence[Measured]) -> list[_Read]:
    answers = [_answers(m) for m in measured]
    rows = [_facts(m, flags) for m, flags in zip(measured, answers, strict=True)]
    values = iter(read_now(rows[0] if len(rows) == 1 else list(chain.from_iterable(rows))))
    found = []
    for each, row, flags in zip(measured, rows, answers, strict=True):
        norm, unit, left, scale, agreement, *rest = islice(values, len(row))
        check_agreement(agreement)
        vetoed, rates = None, []
        if flags is not None:
            vetoed, rest = rest[: len(flags)], rest[len(flags) :]
        if count := len(each.rates):
            rates, rest = rest[:count], rest[count:]
        loss, weight, *metrics = rest
        check_total(weight)
        found.append(_Read(norm, unit, left, scale, vetoed, rates, loss, weight, metrics))
    return found


def _facts(measured: Measured, flags: Sequence[Tensor] | None) -> list[Number]:
    left = measured.norm if measured.left_by_clip is None else measured.left_by_clip
    numbers = [measured.norm, measured.unit, left, measured.loss_scale, measured.agreement]
    return [*numbers, *(flags or ()), *measured.rates, *measured.sums]


def _answers(measured: Measured) -> list[Tensor] | None:
    """What the conditions say, asked on the device: reading the answers later would wait again."""
    norm = measured.norm
    if not measured.vetoes or not isinstance(norm, Tensor) or norm.is_cpu:
        return None
    true_norm = norm if is_one(measured.unit) else norm / on_device(measured.unit, norm.device)
    facts = facts_on_device(measured, true_norm)
    return [ask(condition, facts) for condition in measured.vetoes]


def _joint_norm(read: Sequence[_Read]) -> float:
    norms = [r.norm / r.unit for r in read if r.weight]
    return math.hypot(*(norm for norm in norms if math.isfinite(norm)))


def _judge(
    measured: Measured, read: _Read, joint: Joint | None, joint_norm: float | None
) -> HostDecision:
    grads, present = measured.grads, measured.has_gradients
    exact = measured.squares is None  # elsewhere every rank would look at its own part
    if read.weight == 0 or not present:
        factors = Factors(0.0, math.nan if present else 0.0, 1.0, 1.0)
    elif measured.left_by_clip is None or not math.isfinite(read.norm):
        limit = joint.max_norm if joint is not None else measured.max_norm
        factors = factors_on_host(read.norm, read.unit, limit, grads, joint_norm, exact=exact)
    else:
        factors = factors_on_host(read.left_by_clip, 1.0, None, grads, exact=exact)
        coef = min(1.0, read.left_by_clip * read.unit / read.norm) if read.norm else 1.0
        factors = replace(factors, grad_norm=read.norm / read.unit, clip_coef=coef)
    numbers = StepNumbers(
        factors.grad_norm,
        factors.clip_coef,
        read.scale,
        read.loss,
        read.weight,
        read.metrics,
        read.rates,
    )
    reason = reason_for(factors.found_inf, read.weight)
    reason = reason if present else "no_gradient"
    return HostDecision(measured, factors, numbers, reason, read.vetoed)


def _spreads(reason: str | None) -> bool:
    """Whether a reason to skip is one for the other optimizers too."""
    return reason not in (None, "empty_window", "no_gradient")


def _ask_vetoes(decision: HostDecision) -> None:
    facts = _as_facts(decision) if decision.vetoed is None else None
    for index, condition in enumerate(decision.measured.vetoes):
        if decision.reason is not None:
            return
        if facts is None:
            assert decision.vetoed is not None
            says_so = bool(decision.vetoed[index])
        else:
            says_so = bool(ask(condition, facts))
        if says_so:
            decision.reason = f"veto: {name_of(condition)}"


def tell_vetoes(decision: HostDecision) -> None:
    """Let conditions that learn know how the step ended."""
    vetoes = [condition for condition in decision.measured.vetoes if learns(condition)]
    if not (vetoes and decision.measured.has_gradients):
        return
    facts = _as_facts(decision)
    updated = _filled(decision.reason is None, facts)
    for condition in vetoes:
        held = decision.reason == f"veto: {name_of(condition)}"
        tell(condition, facts, _filled(held, facts), updated)


def _filled(value: bool, facts: Facts) -> Tensor:
    """On the device of the facts; a copy from the host would wait."""
    return torch.full((), value, dtype=torch.bool, device=facts.loss.device)


def _as_facts(decision: HostDecision) -> Facts:
    numbers = decision.numbers
    loss = numbers.loss_total / numbers.weight if numbers.weight else math.nan
    grads = decision.measured.grads
    device = grads[0].device if grads else torch.device("cpu")  # a rank that has none

    def tensor(value: float) -> Tensor:
        return torch.full((), value, dtype=torch.float64, device=device)

    return Facts(
        tensor(numbers.grad_norm), tensor(loss), tensor(numbers.scale), decision.measured.name
    )
