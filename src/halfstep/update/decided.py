"""The host's decision about a step: for optimizers that cannot hold by themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import NamedTuple

import torch
from torch import Tensor

from halfstep.update.attempt import Numbers, reason_for
from halfstep.update.clipping import Joint
from halfstep.update.lane import Share
from halfstep.update.multiplier import Decision, decide_on_host
from halfstep.update.readback import Number, read_now
from halfstep.update.veto import Facts, ask, name_of, tell
from halfstep.update.window import check_total


@dataclass
class Verdict:
    """What the host decided about one share.

    Attributes:
        share: Which.
        decision: Its multiplier, and whether its own gradients allow the update.
        numbers: For the record.
        reason: Why nothing may move, or ``None``.
    """

    share: Share
    decision: Decision[float]
    numbers: Numbers
    reason: str | None


def decide(shares: Sequence[Share], joint: Joint | None, together: bool) -> list[Verdict]:
    """The decision about every share, in one wait.

    Args:
        shares: Of the optimizers that step together.
        joint: A limit of the norm over all of them.
        together: Whether all hold where one has to.

    Syncs: once, if anything is on a device.
    """
    read = _read(shares)
    norm = _joint_norm(read) if joint is not None else None
    verdicts = [
        _judge(share, numbers, joint, norm) for share, numbers in zip(shares, read, strict=True)
    ]
    asked = [v for v in verdicts if v.share.grads and v.share.lane.vetoes]
    for verdict in asked:
        _ask_vetoes(verdict)
    if together and any(_spreads(verdict.reason) for verdict in verdicts):
        for verdict in verdicts:
            verdict.reason = verdict.reason or "together"
    for verdict in asked:
        _tell_vetoes(verdict)
    return verdicts


class _Read(NamedTuple):
    norm: float
    unit: float
    left_by_clip: float
    scale: float
    loss: float
    weight: float
    metrics: list[float]


def _read(shares: Sequence[Share]) -> list[_Read]:
    rows = [_facts(share) for share in shares]
    values = iter(read_now(list(chain.from_iterable(rows))))
    found = []
    for row in rows:
        norm, unit, left, scale, loss, weight, *metrics = islice(values, len(row))
        check_total(weight)
        found.append(_Read(norm, unit, left, scale, loss, weight, metrics))
    return found


def _facts(share: Share) -> list[Number]:
    left = share.norm if share.left_by_clip is None else share.left_by_clip
    scale = share.lane.loss_scale.value
    return [share.norm, share.unit, left, scale, *share.window.sums()]


def _joint_norm(read: Sequence[_Read]) -> float:
    norms = [r.norm / r.unit for r in read if r.weight]
    return math.hypot(*(norm for norm in norms if math.isfinite(norm)))


def _judge(share: Share, read: _Read, joint: Joint | None, joint_norm: float | None) -> Verdict:
    if read.weight == 0 or not share.grads:
        decision = Decision(0.0, math.nan if share.grads else 0.0, 1.0, 1.0)
    elif share.left_by_clip is None or not math.isfinite(read.norm):
        limit = joint.max_norm if joint is not None else share.lane.max_norm
        decision = decide_on_host(read.norm, read.unit, limit, share.grads, joint_norm)
    else:
        decision = decide_on_host(read.left_by_clip, 1.0, None, share.grads)
        coef = min(1.0, read.left_by_clip * read.unit / read.norm) if read.norm else 1.0
        decision = replace(decision, grad_norm=read.norm / read.unit, clip_coef=coef)
    numbers = Numbers(
        decision.grad_norm, decision.clip_coef, read.scale, read.loss, read.weight, read.metrics
    )
    reason = reason_for(decision.found_inf, read.weight)
    return Verdict(share, decision, numbers, reason if share.grads else "no_gradient")


def _spreads(reason: str | None) -> bool:
    """Whether a reason to hold is one for the other optimizers too."""
    return reason not in (None, "empty_window", "no_gradient")


def _ask_vetoes(verdict: Verdict) -> None:
    facts = _as_facts(verdict)
    for condition in verdict.share.lane.vetoes:
        if verdict.reason is None and bool(ask(condition, facts)):
            verdict.reason = f"veto: {name_of(condition)}"


def _tell_vetoes(verdict: Verdict) -> None:
    facts = _as_facts(verdict)
    updated = torch.tensor(verdict.reason is None)
    for condition in verdict.share.lane.vetoes:
        held = torch.tensor(verdict.reason == f"veto: {name_of(condition)}")
        tell(condition, facts, held.to(facts.loss.device), updated.to(facts.loss.device))


def _as_facts(verdict: Verdict) -> Facts:
    numbers = verdict.numbers
    loss = numbers.loss_total / numbers.weight if numbers.weight else math.nan
    device = verdict.share.grads[0].device

    def tensor(value: float) -> Tensor:
        return torch.full((), value, dtype=torch.float64, device=device)

    name = verdict.share.lane.name
    return Facts(tensor(numbers.grad_norm), tensor(loss), tensor(numbers.scale), name)
