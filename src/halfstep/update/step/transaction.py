"""The update as one transaction: everything commits together or nothing moves."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice

import torch
from torch import Tensor

from halfstep.records import CallOrderError, NonFiniteGradientError, ScaleCollapse, StepRecord
from halfstep.update.decision import on_device, on_host
from halfstep.update.decision.clipping import Joint
from halfstep.update.decision.measured import Measured, MeasuredShape, StepNumbers
from halfstep.update.decision.on_device import decide_on_device, read_facts
from halfstep.update.decision.on_host import HostDecision, decide_on_host
from halfstep.update.loss_scale.base import LossScale
from halfstep.update.loss_scale.updates import SavedScales, ScaleUpdates
from halfstep.update.optimizers.gradients import Gradients
from halfstep.update.optimizers.launch import Launch, TornUpdateError, launch_all
from halfstep.update.ranks.ranks import ONE, Ranks
from halfstep.update.readback import LateNumbers, Number, Readback
from halfstep.update.step.counters import Counters
from halfstep.update.step.exchange import exchange
from halfstep.update.step.launched_step import LaunchedStep, combine
from halfstep.update.step.optimizer_slot import OptimizerSlot
from halfstep.update.step.outcome import StepOutcome
from halfstep.update.step.signals import SignalsWait
from halfstep.update.step.window import Window

logger = logging.getLogger("halfstep")

OnCommit = Callable[[Sequence[OptimizerSlot]], None]
OnSkip = Callable[[Mapping[OptimizerSlot, Number]], None]
_Launch = tuple[LaunchedStep, int]


_TORN = (
    "the optimizer failed halfway through a step: a part of the weights or of its state has moved"
    " and cannot be put back. Load a checkpoint before going on."
)


@dataclass
class FinishedStep:
    """How one optimizer's step ended.

    It outlives the step in an outcome that nobody has looked at yet, so it holds no gradient.

    Attributes:
        slot: Whose.
        launched: What was known at its launch.
        try_number: Which try of the loss scale this was; it stays while the scale is pinned by
            another optimizer's open window.
        numbers: Its numbers.
        reason: Why nothing moved, or ``None``.
        next_scale: Loss scale of the next window; on its way from the device until it is looked at.
        consumed: Of the slot, this step included.
    """

    slot: OptimizerSlot
    launched: LaunchedStep
    try_number: int
    numbers: StepNumbers
    reason: str | None
    next_scale: float | Readback = 0.0
    consumed: float = 0.0

    @property
    def divisor(self) -> float:
        """Of the window; 0 for mean losses."""
        return self.numbers.weight if self.launched.has_divisor else 0.0

    def record(self) -> StepRecord:
        """The step as plain data."""
        known = self.next_scale
        next_scale = known.wait()[0] if isinstance(known, Readback) else known
        return self.launched.record(self.numbers, self.reason, next_scale, self.consumed)


class Update:
    """Scale, check, clip, step, scale update and commit for one optimizer, or several together.

    In pseudo-code, on the host::

        norm = |gradients|                      # one read; finite if and only if they are
        several ranks exchange square sums, losses, divisors and what they must agree on
        loss scale takes note, unless divisor == 0
        if norm is finite and divisor > 0:
            optimizer steps with gradients / (S * divisor / nominal / clip_coef)
            commit: counters, schedule
        gradients = None

    Where the optimizer raises, it is put back, and the loss scale too.

    On an accelerator with fused optimizers the same happens without the host: the kernels skip
    by themselves on `found_inf`, and the commit follows when the next update is launched or when
    somebody looks at the outcome.

    Args:
        slots: One per optimizer.
        joint: A limit of the norm over all optimizers that step together.
        overflow: ``"together"``: where one is skipped, all are; ``"independent"``.
        stop_at_non_finite: Raise `NonFiniteGradientError` instead of skipping.
        on_commit: Called after each committed update with the slots that moved.
        on_skip: Called when something may have to be put back, with 1.0 for every slot of the
            step that is skipped and 0.0 for the others; for an update that the kernels decide,
            before its launch with undecided 0-d tensors.

    Attributes:
        ranks: The processes that train together.
    """

    def __init__(
        self,
        slots: Sequence[OptimizerSlot],
        *,
        joint: Joint | None = None,
        overflow: str = "together",
        stop_at_non_finite: bool = False,
        on_commit: OnCommit | None = None,
        on_skip: OnSkip | None = None,
    ) -> None:
        self.slots = list(slots)
        self.counters = Counters()
        self.ranks: Ranks = ONE
        self._joint = joint
        self._together = overflow == "together"
        self._stop_at_non_finite = stop_at_non_finite
        self._on_commit: OnCommit = on_commit or (lambda slots: None)
        self._on_skip: OnSkip = on_skip or (lambda skipped: None)
        self._scale_updates = ScaleUpdates()
        self._unsettled: StepOutcome | None = None
        self._is_torn = False
        self._signals_wait = SignalsWait()
        self._said: set[str] = set()

    def settle(self) -> None:
        """Commit the previous step if the host has not done so yet.

        Syncs: waits for that step, which is over by the time the next one is launched.
        """
        if (outcome := self._unsettled) is not None:
            outcome.settle()

    def refuse_torn(self) -> None:
        """Refuse to go on with weights of which a part has moved."""
        if self._is_torn:
            raise CallOrderError(_TORN)

    def weights_were_loaded(self) -> None:
        """Weights and optimizer state were loaded: go on."""
        self._is_torn = False

    def abort(self, slots: Sequence[OptimizerSlot]) -> None:
        """Drop the windows of some slots, and their gradients."""
        for slot in slots:
            slot.drop_window()
        self._tell_loss_scales()

    def run(self, slots: Sequence[OptimizerSlot]) -> StepOutcome:
        """One step over the windows of some slots, each with at least one micro-batch.

        Windows and gradients are gone afterwards: after an update, a skip and an error.

        Raises:
            CallOrderError: No parameter has a gradient.
            NonFiniteGradientError: ``stop_at_non_finite`` and a gradient is not finite.
            ScaleCollapse: One skip in a row too many.

        Syncs: once, unless all optimizers can skip by themselves (fused, on an accelerator).
        """
        try:
            self.refuse_torn()
            self.settle()
            measured = self._measure(slots)
            launched = {slot: self._launched(slot) for slot in slots}
            for slot in slots:
                slot.window = Window()  # closed: its loss scale may move
            if self._may_defer(measured):
                return self._step_on_device(measured, launched)
            return self._step_on_host(measured, launched)
        finally:
            for slot in slots:
                slot.drop_window()
            torch.clear_autocast_cache()  # it holds casts of the weights as they were

    def _measure(self, slots: Sequence[OptimizerSlot]) -> dict[OptimizerSlot, Measured]:
        ranks = self.ranks
        measured = {slot: slot.measure(ranks) for slot in slots}
        if ranks.are_several:
            state = (self.counters.attempts, self.counters.num_updates)
            exchange(list(measured.values()), ranks, state)
        for slot, found in measured.items():
            slot.clip_by_callable(found, ranks)
            if found.has_gradients:
                continue
            which = f" {slot.name!r}" if len(self.slots) > 1 else ""
            text = (
                f"no parameter of the optimizer{which} received a gradient in this window"
                f" ({slot.some_names()}): either the loss does not depend on them, or"
                " zero_grad() was called after backward"
            )
            if not any(each.has_gradients for each in measured.values()):
                raise CallOrderError(f"{text}.")
            self._warn_once(slot.name, "%s; it was not stepped (said once)", text)
        return measured

    def _may_defer(self, measured: Mapping[OptimizerSlot, Measured]) -> bool:
        return not self._stop_at_non_finite and all(
            slot.kernel_can_skip(each) for slot, each in measured.items()
        )

    def _step_on_host(
        self, measured: Mapping[OptimizerSlot, Measured], launched: Mapping[OptimizerSlot, _Launch]
    ) -> StepOutcome:
        """The host decides."""
        found = decide_on_host(list(measured.values()), self._joint, self._together)
        decisions = dict(zip(measured, found, strict=True))
        moving = {slot: d for slot, d in decisions.items() if d.reason is None}
        if len(moving) < len(decisions):
            self._on_skip({slot: float(slot not in moving) for slot in decisions})
        if self._stop_at_non_finite:
            self._raise_if_non_finite(decisions)
        results = [
            FinishedStep(slot, *launched[slot], d.numbers, d.reason)
            for slot, d in decisions.items()
        ]
        for slot, decision in moving.items():
            self._warn_of_zero_gradients(slot, decision)
        with self._signals_wait:
            saved = self._scale_updates.saved(self.slots)
            try:
                for result in results:
                    found_inf = float(result.reason == "non_finite")
                    counts = float(result.reason in (None, "non_finite"))
                    self._scale_updates.note(result.slot.loss_scale, found_inf, counts)
                self._tell_loss_scales(saved)
                for result in results:
                    result.next_scale = _on_its_way(_next_scale(result.slot))
                late = self._apply(
                    {
                        slot: (d.measured.gradients, d.factors.multiplier, None)
                        for slot, d in moving.items()
                    }
                )
            except BaseException:
                self._scale_updates.put_back(saved)
                raise
            try:
                for decision in found:
                    on_host.tell_vetoes(decision)
            finally:
                outcome = self._commit(results)
            if late is not None:
                raise late
            return outcome

    def _step_on_device(
        self, measured: Mapping[OptimizerSlot, Measured], launched: Mapping[OptimizerSlot, _Launch]
    ) -> StepOutcome:
        """The kernels decide, nothing waits.

        All that is read later is on its way before the launch, after which nothing may fail.
        """
        found = decide_on_device(list(measured.values()), self._joint, self._together)
        decisions = dict(zip(measured, found, strict=True))
        self._on_skip({slot: d.skipped for slot, d in decisions.items()})
        with self._signals_wait:
            saved = self._scale_updates.saved(self.slots)
            try:
                for slot, d in decisions.items():
                    self._scale_updates.note(slot.loss_scale, d.factors.found_inf, d.counts())
                self._tell_loss_scales(saved)
                numbers = [d.numbers(_next_scale(slot)) for slot, d in decisions.items()]
                late_numbers = LateNumbers(list(chain.from_iterable(numbers)))
                late = self._apply(
                    {
                        slot: (d.measured.gradients, d.factors.multiplier, d.skipped)
                        for slot, d in decisions.items()
                    }
                )
            except BaseException:
                self._scale_updates.put_back(saved)
                raise
            self._unsettled = outcome = StepOutcome(
                partial(
                    self._settle_from,
                    late_numbers,
                    launched,
                    [(len(own), d.measured.shape) for own, d in zip(numbers, found, strict=True)],
                ),
                late_numbers.wait,
            )
            for decision in found:
                on_device.tell_vetoes(decision)
            if late is not None:
                raise late
        return outcome

    def _settle_from(
        self,
        late_numbers: LateNumbers,
        launched: Mapping[OptimizerSlot, _Launch],
        shapes: Sequence[tuple[int, MeasuredShape]],
    ) -> StepRecord:
        """Commit a step that the device has decided."""
        with SignalsWait():
            self._unsettled = None
            read, results = iter(late_numbers.wait()), []
            for (slot, launch), (length, shape) in zip(launched.items(), shapes, strict=True):
                numbers, reason, scale = read_facts(list(islice(read, length)), shape)
                results.append(FinishedStep(slot, *launch, numbers, reason, scale))
            outcome = self._commit(results)
        return outcome.record

    def _apply(
        self,
        updates: Mapping[OptimizerSlot, tuple[Gradients, float | Tensor, Tensor | None]],
    ) -> BaseException | None:
        """Step every optimizer, or none: where one raises, the others are put back as well.

        Args:
            updates: Gradients, multiplier and `found_inf` of each optimizer that may move.

        Returns:
            What went wrong in a step that was made all the same, to be raised after the commit.
        """
        launches: list[Launch] = []
        stepped: list[OptimizerSlot] = []
        try:
            for slot, (gradients, multiplier, found_inf) in updates.items():
                own = slot.adapter.launches(gradients, multiplier, found_inf)
                if own is not None:
                    launches += own
                    continue
                stepped.append(slot)
                slot.adapter.step(gradients, multiplier, found_inf)
            late = launch_all(launches)  # last: nothing takes a kernel back
        except BaseException as error:
            put_back = [slot.adapter.undo() for slot in stepped]
            if all(put_back) and not isinstance(error, TornUpdateError):
                raise
            self._is_torn = True
            cause = error.__cause__ if isinstance(error, TornUpdateError) else error
            assert cause is not None
            cause.add_note(_TORN)
            raise cause from None
        for slot in stepped:
            slot.adapter.forget()
        return late

    def _warn_of_zero_gradients(self, slot: OptimizerSlot, decision: HostDecision) -> None:
        if decision.factors.grad_norm == 0:
            self._warn_once(
                "zero gradients",
                "update %d: every gradient is exactly 0; was zero_grad(set_to_none=False)"
                " called after backward? (said once)",
                slot.counters.num_updates + 1,
            )

    def _launched(self, slot: OptimizerSlot) -> _Launch:
        """What a result knows of its launch; the slot's window is still the one that is stepped."""
        return slot.launched_step(), self._scale_updates.times_told(slot.loss_scale)

    def _commit(self, results: Sequence[FinishedStep]) -> StepOutcome:
        """Move the counters and whatever hangs on them, all of it also where a part raises."""
        moved, outcome = self._count(results)
        try:
            if moved:
                self._on_commit(moved)
        finally:
            self._observe(results, outcome)
        return outcome

    def _count(self, results: Sequence[FinishedStep]) -> tuple[list[OptimizerSlot], StepOutcome]:
        moved, windows = [], {}
        for result in results:
            updated = result.reason is None
            result.consumed = result.slot.counters.count(updated, result.divisor)
            windows[result.launched.micro_batches] = result.divisor
            if updated:
                moved.append(result.slot)
        consumed = self.counters.count(bool(moved), sum(windows.values()))
        number = self.counters.attempts
        return moved, StepOutcome(
            results[0].record
            if len(self.slots) == 1
            else lambda: combine(
                {r.slot.name: r.record() for r in results},
                [r.launched.micro_batches for r in results],
                number,
                consumed,
            )
        )

    def _tell_loss_scales(self, saved: SavedScales | None = None) -> None:
        still_open = {slot.loss_scale for slot in self.slots if slot.window.is_open}
        self._scale_updates.tell(still_open, saved)

    def _observe(self, results: Sequence[FinishedStep], outcome: StepOutcome) -> None:
        """Let loss scales and slots count their skips."""
        by_scale: dict[LossScale, list[FinishedStep]] = {}
        for result in results:
            is_new = result.reason is None or result.slot.is_new_try(result.try_number)
            if result.reason in (None, "non_finite") and is_new:
                by_scale.setdefault(result.slot.loss_scale, []).append(result)
        try:
            for scale, group in by_scale.items():
                skipped = any(result.reason is not None for result in group)
                scale.observe(skipped, group[0].numbers.scale)
                if [slot.loss_scale for slot in self.slots].count(scale) > 1:
                    for result in group:
                        result.slot.observe(result.reason is not None, result.numbers.scale)
        except ScaleCollapse as collapse:
            names = self._bad_parameters(r.slot for r in results if r.reason == "non_finite")
            raise ScaleCollapse(
                collapse.num_skips, collapse.scales, names, outcome.record
            ) from None

    def _bad_parameters(self, slots: Iterable[OptimizerSlot]) -> list[str]:
        """Names of the parameters whose gradient is not finite, on any rank."""
        own = [name for slot in slots for name in slot.bad_parameters()]
        names = list(dict.fromkeys(chain.from_iterable(self.ranks.gather(own))))
        return names or ["a gradient that overflows when it is unscaled"]

    def _warn_once(self, key: str, text: str, *values: object) -> None:
        if key not in self._said:
            self._said.add(key)
            logger.warning(text, *values)

    def _raise_if_non_finite(self, decisions: Mapping[OptimizerSlot, HostDecision]) -> None:
        bad = {slot: d for slot, d in decisions.items() if d.reason == "non_finite"}
        if not bad:
            return
        names = self._bad_parameters(bad)
        total = sum(len(slot.parameters()) for slot in decisions)
        numbers = next(iter(bad.values())).numbers
        loss, scale = numbers.loss_total, numbers.scale
        kind = "finite" if math.isfinite(loss) else f"{loss}, not finite itself"
        raise NonFiniteGradientError(
            f"a gradient is not finite at loss scale {scale:g}, first in {names[0]}"
            f" ({len(names)} of {total} parameters); the loss was {kind}."
            " Nothing was updated."
            " diagnose='never' would skip this window and go on.",
            names,
        )


def _next_scale(slot: OptimizerSlot) -> Number:
    """The present scale; where only a device knows it, the live tensor."""
    known = slot.loss_scale.known_value
    return slot.loss_scale.value if known is None else known


def _on_its_way(scale: Number) -> float | Readback:
    """The scale as it is now, without a wait."""
    if not isinstance(scale, Tensor):
        return scale
    return float(scale) if scale.is_cpu else Readback(scale.reshape(1))
