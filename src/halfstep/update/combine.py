"""One record of a step that several optimizers made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from halfstep.records import StepRecord


def combine(
    parts: Mapping[str, StepRecord],
    micro_batches: Sequence[tuple[int, ...]],
    number: int,
    consumed: float,
) -> StepRecord:
    """The step as a whole.

    It is an update if any optimizer moved; else its reason is the first one that is a cause.
    Norms join as one norm over all gradients. Losses are averaged over the windows; optimizers
    that saw the same backward calls count once.

    Args:
        parts: Optimizer name to its own record.
        micro_batches: Numbers of the backward calls in each one's window, in the same order.
        number: Steps of the run so far.
        consumed: Divisors of all committed steps of the run.
    """
    records = list(parts.values())
    by_window = dict(zip(micro_batches, records, strict=True))
    windows = list(by_window.values())
    weights = [len(c) if r.divisor is None else r.divisor for c, r in by_window.items()]
    total = sum(weights)

    def average(values: Sequence[float]) -> float:
        summed = sum(v * w for v, w in zip(values, weights, strict=True) if w)
        return summed / total if total else math.nan

    metrics = [r.metrics for r in windows]
    names = [name for name in metrics[0] if all(name in m for m in metrics)]
    divisors = [r.divisor for r in windows]
    updated = any(r.updated for r in records)
    norms = [r.grad_norm for r in records if r.reason != "empty_window"]
    return StepRecord(
        step=number,
        updated=updated,
        reason=None if updated else _cause([r.reason for r in records]),
        loss=average([r.loss for r in windows]),
        divisor=None if None in divisors else total,
        metrics={name: average([m[name] for m in metrics]) for name in names},
        grad_norm=math.hypot(*norms) if norms else math.nan,
        clip_coef=min(r.clip_coef for r in records),
        loss_scale=records[0].loss_scale,
        next_loss_scale=records[0].next_loss_scale,
        lr=[rate for r in records for rate in r.lr],
        consumed=consumed,
        per_optimizer=dict(parts),
    )


def _cause(reasons: Sequence[str | None]) -> str | None:
    """The first reason that is not another optimizer's."""
    return min(reasons, key=lambda reason: reason in ("together", "no_gradient", "empty_window"))
