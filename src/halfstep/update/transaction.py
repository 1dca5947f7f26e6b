"""The update as one transaction: everything commits together or nothing moves."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import torch

from halfstep.records import CallOrderError, NonFiniteGradientError, ScaleCollapse, StepRecord
from halfstep.update.attempt import Attempt, Numbers
from halfstep.update.clipping import Joint
from halfstep.update.combine import combine
from halfstep.update.counters import Counters
from halfstep.update.decided import Verdict, decide
from halfstep.update.lane import Lane, Share
from halfstep.update.loss_scale import LossScale
from halfstep.update.outcome import StepOutcome
from halfstep.update.readback import Number, Readback, pack
from halfstep.update.scale_updates import ScaleUpdates
from halfstep.update.undecided import decide_later, read_facts
from halfstep.update.window import Window

logger = logging.getLogger("halfstep")


@dataclass
class _Result:
    """How one optimizer's attempt ended.

    It outlives the step in an outcome that nobody has looked at yet, so it holds no gradient.

    Attributes:
        lane: Whose.
        attempt: What was known at its launch.
        try_number: Which try of the loss scale this was; it stays while the scale is pinned by
            another optimizer's open window.
        numbers: Its numbers.
        reason: Why nothing moved, or ``None``.
        next_scale: Loss scale of the next window; left on the device until it is looked at.
        consumed: Of the lane, this attempt included.
    """

    lane: Lane
    attempt: Attempt
    try_number: int
    numbers: Numbers
    reason: str | None
    next_scale: Number = 0.0
    consumed: float = 0.0

    @property
    def divisor(self) -> float:
        return self.numbers.weight if self.attempt.has_divisor else 0.0

    def record(self) -> StepRecord:
        next_scale = float(self.next_scale)
        return self.attempt.record(self.numbers, self.reason, next_scale, self.consumed)


class Update:
    """Scale, check, clip, step, scale update and commit for one optimizer, or several together.

    In pseudo-code, on the host::

        norm = |gradients|                      # one read; finite if and only if they are
        if norm is finite and divisor > 0:
            optimizer steps with gradients / (S * divisor / nominal / clip_coef)
            commit: counters, schedule
        loss scale takes note, unless divisor == 0
        gradients = None

    On an accelerator with fused optimizers the same happens without the host: the kernels hold
    by themselves on `found_inf`, and the commit follows when the next update is launched or when
    somebody looks at the outcome.

    Args:
        lanes: One per optimizer.
        joint: A limit of the norm over all optimizers that step together.
        overflow: ``"together"``: where one has to hold, all do; ``"independent"``.
        stop_at_non_finite: Raise `NonFiniteGradientError` instead of skipping.
        on_commit: Called after each committed update with the lanes that moved.
        on_hold: Called when something may have to be put back, with 1.0 for every lane of the
            step that holds and 0.0 for the others; for an update that the kernels decide, at its
            launch with undecided 0-d tensors.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        *,
        joint: Joint | None = None,
        overflow: str = "together",
        stop_at_non_finite: bool = False,
        on_commit: Callable[[Sequence[Lane]], None] | None = None,
        on_hold: Callable[[Mapping[Lane, Number]], None] | None = None,
    ) -> None:
        self.lanes = list(lanes)
        self.counters = Counters()
        self._joint = joint
        self._together = overflow == "together"
        self._stop_at_non_finite = stop_at_non_finite
        self._on_commit: Callable[[Sequence[Lane]], None] = on_commit or (lambda lanes: None)
        self._on_hold: Callable[[Mapping[Lane, Number]], None] = on_hold or (lambda held: None)
        self._scale_updates = ScaleUpdates()
        self._unsettled: StepOutcome | None = None
        self._said: set[str] = set()

    def settle(self) -> None:
        """Commit the previous step if the host has not done so yet.

        Syncs: waits for that step, which is over by the time the next one is launched.
        """
        if (outcome := self._unsettled) is not None:
            outcome.settle()

    def abort(self, lanes: Sequence[Lane]) -> None:
        """Drop the windows of some lanes, and their gradients."""
        for lane in lanes:
            lane.drop_window()
        self._tell_loss_scales()

    def run(self, lanes: Sequence[Lane]) -> StepOutcome:
        """One step over the windows of some lanes, each with at least one micro-batch.

        Windows and gradients are gone afterwards: after an update, a skip and an error.

        Raises:
            CallOrderError: No parameter has a gradient.
            NonFiniteGradientError: ``stop_at_non_finite`` and a gradient is not finite.
            ScaleCollapse: One skip in a row too many.

        Syncs: once, unless all optimizers can skip by themselves (fused, on an accelerator).
        """
        try:
            self.settle()
            shares = self._shares(lanes)
            for lane in lanes:
                lane.window = Window()  # closed: its loss scale may move
            if self._may_defer(shares):
                return self._step_undecided(shares)
            return self._step_decided(shares)
        finally:
            for lane in lanes:
                lane.drop_window()
            torch.clear_autocast_cache()  # it holds casts of the weights as they were

    def _shares(self, lanes: Sequence[Lane]) -> list[Share]:
        shares = [lane.measure() for lane in lanes]
        for share in shares:
            if share.grads:
                continue
            lane = share.lane
            which = f" {lane.name!r}" if len(self.lanes) > 1 else ""
            text = (
                f"no parameter of the optimizer{which} received a gradient in this window"
                f" ({lane.some_names()}): either the loss does not depend on them, or"
                " zero_grad() was called after backward"
            )
            if not any(share.grads for share in shares):
                raise CallOrderError(f"{text}.")
            self._warn_once(lane.name, "%s; it was not stepped (said once)", text)
        return shares

    def _may_defer(self, shares: Sequence[Share]) -> bool:
        return not self._stop_at_non_finite and all(share.can_wait for share in shares)

    def _step_decided(self, shares: Sequence[Share]) -> StepOutcome:
        """The host decides."""
        verdicts = decide(shares, self._joint, self._together)
        if any(v.reason is not None for v in verdicts):
            self._on_hold({v.share.lane: float(v.reason is not None) for v in verdicts})
        if self._stop_at_non_finite:
            self._raise_if_non_finite(verdicts)
        results = []
        for v in verdicts:
            results.append(_Result(*self._launched(v.share), v.numbers, v.reason))
            if v.reason is None:
                if v.decision.grad_norm == 0:
                    self._warn_once(
                        "zero gradients",
                        "update %d: every gradient is exactly 0; was zero_grad(set_to_none=False)"
                        " called after backward? (said once)",
                        v.share.lane.counters.num_updates + 1,
                    )
                v.share.apply(v.decision.multiplier, None)
        for result in results:
            found_inf = float(result.reason == "non_finite")
            counts = float(result.reason in (None, "non_finite"))
            self._scale_updates.note(result.lane.loss_scale, found_inf, counts)
        self._tell_loss_scales()
        for result in results:
            result.next_scale = _next_scale(result)
        return self._commit(results)

    def _step_undecided(self, shares: Sequence[Share]) -> StepOutcome:
        """The kernels decide, nothing waits."""
        pending = decide_later(shares, self._joint, self._together)
        launched = [self._launched(share) for share in shares]
        for p in pending:
            p.share.apply(p.decision.multiplier, p.held)
        self._on_hold({p.share.lane: p.held for p in pending})
        for p in pending:
            scale = p.share.lane.loss_scale
            self._scale_updates.note(scale, p.decision.found_inf, p.counts())
        self._tell_loss_scales()
        rows = [
            [*p.facts(), p.share.lane.loss_scale.value, *p.share.window.sums()] for p in pending
        ]
        home = pending[0].held.device
        readback = Readback(pack([value for row in rows for value in row], home))
        lengths = [len(row) for row in rows]

        def settle() -> StepRecord:
            self._unsettled = None
            values, results = iter(readback.wait()), []
            for (lane, attempt, tried), length in zip(launched, lengths, strict=True):
                facts = read_facts(list(islice(values, length)), lane.vetoes)
                results.append(_Result(lane, attempt, tried, *facts))
            return self._commit(results).record

        self._unsettled = StepOutcome(settle)
        return self._unsettled

    def _launched(self, share: Share) -> tuple[Lane, Attempt, int]:
        """What a result knows of its launch."""
        lane = share.lane
        return lane, share.attempt(), self._scale_updates.times_told(lane.loss_scale)

    def _commit(self, results: Sequence[_Result]) -> StepOutcome:
        """Move the counters and whatever hangs on them."""
        moved, windows = [], {}
        for result in results:
            updated = result.reason is None
            result.consumed = result.lane.counters.count(updated, result.divisor)
            windows[result.attempt.micro_batches] = result.divisor
            if updated:
                moved.append(result.lane)
        consumed = self.counters.count(bool(moved), sum(windows.values()))
        if moved:
            self._on_commit(moved)
        number = self.counters.attempts
        outcome = StepOutcome(
            results[0].record
            if len(self.lanes) == 1
            else lambda: combine(
                {r.lane.name: r.record() for r in results},
                [r.attempt.micro_batches for r in results],
                number,
                consumed,
            )
        )
        self._observe(results, outcome)
        return outcome

    def _tell_loss_scales(self) -> None:
        self._scale_updates.tell(
            {lane.loss_scale for lane in self.lanes if lane.window.num_micro_batches}
        )

    def _observe(self, results: Sequence[_Result], outcome: StepOutcome) -> None:
        """Let loss scales and lanes count their skips."""
        by_scale: dict[LossScale, list[_Result]] = {}
        for result in results:
            is_new = result.reason is None or result.lane.is_new_try(result.try_number)
            if result.reason in (None, "non_finite") and is_new:
                by_scale.setdefault(result.lane.loss_scale, []).append(result)
        try:
            for scale, group in by_scale.items():
                skipped = any(result.reason is not None for result in group)
                scale.observe(skipped, group[0].numbers.scale)
                if [lane.loss_scale for lane in self.lanes].count(scale) > 1:
                    for result in group:
                        result.lane.observe(result.reason is not None, result.numbers.scale)
        except ScaleCollapse as collapse:
            names = [
                name
                for result in results
                if result.reason == "non_finite"
                for name in result.lane.bad_parameters()
            ]
            raise ScaleCollapse(
                collapse.num_skips, collapse.scales, names, outcome.record
            ) from None

    def _warn_once(self, key: str, text: str, *values: object) -> None:
        if key not in self._said:
            self._said.add(key)
            logger.warning(text, *values)

    def _raise_if_non_finite(self, verdicts: Sequence[Verdict]) -> None:
        bad = [v for v in verdicts if v.reason == "non_finite"]
        if not bad:
            return
        names = [name for v in bad for name in v.share.lane.bad_parameters()]
        total = sum(len(v.share.lane.parameters()) for v in verdicts)
        loss, scale = bad[0].numbers.loss_total, bad[0].numbers.scale
        kind = "finite" if math.isfinite(loss) else f"{loss}, not finite itself"
        raise NonFiniteGradientError(
            f"a gradient is not finite at loss scale {scale:g}, first in {names[0]}"
            f" ({len(names)} of {total} parameters); the loss was {kind}."
            " Nothing was updated."
            " diagnose='never' would skip this window and go on.",
            names,
        )


def _next_scale(result: _Result) -> Number:
    """The next scale; where it may have moved on a device it stays there until it is read."""
    scale = result.lane.loss_scale
    if scale.value.is_cpu:
        return float(scale.value)
    return scale.value.clone() if scale.device_state() else result.numbers.scale
