"""The update as one transaction: everything commits together or nothing moves."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.optim import Optimizer

from halfstep.records import (
    BadTypeError,
    BadValueError,
    CallOrderError,
    NonFiniteGradientError,
    ScaleCollapse,
    StepRecord,
)
from halfstep.records.step import Reason
from halfstep.update.adapter import OptimizerAdapter
from halfstep.update.attempt import Attempt, Numbers, reason_for
from halfstep.update.gradients import GradientCollector, non_finite_parameters, values_of
from halfstep.update.loss_scale import LossScale
from halfstep.update.multiplier import Decision, decide_on_device, decide_on_host, divide_
from halfstep.update.norm import GradientNorm
from halfstep.update.outcome import StepOutcome
from halfstep.update.readback import Number, Readback, on_device, pack, read_now
from halfstep.update.window import Window

logger = logging.getLogger("halfstep")

Clip = Callable[[list[Tensor]], object]


@dataclass
class Counters:
    """What a run has done so far.

    Attributes:
        attempts: Steps, skipped ones included.
        num_updates: Steps that moved the parameters.
        consumed: Sum of divisors over those.
        nominal: The power of two near the first divisor, by which LossSums are divided in
            backward so that FP16 keeps its range; 0 before the first LossSum.
    """

    attempts: int = 0
    num_updates: int = 0
    consumed: float = 0.0
    nominal: float = 0.0

    def nominal_for(self, divisor: float | Tensor) -> float:
        """The power of two near the run's first positive divisor, fixed from then on.

        A loss summed over 4,096 tokens at S = 2^16 overflows in FP16 where its mean would not, so
        backward divides by this and the update corrects exactly.

        Syncs: once per run, for a device tensor.
        """
        if not self.nominal:
            first = float(divisor)
            if not 0 < first < math.inf:
                return 1.0
            self.nominal = 2.0 ** round(math.log2(first))
        return self.nominal


@dataclass(frozen=True)
class Measured:
    """The gradients of a window in three numbers.

    Attributes:
        norm: 2-norm of the gradients as backward left them.
        unit: What they carry: scale times divisor over nominal.
        left_by_clip: 2-norm after the user's clip callable, where there is one.
    """

    norm: Number
    unit: Number
    left_by_clip: Number | None = None


class Update:
    """Scale, check, clip, step, scale update and commit for one optimizer.

    In pseudo-code, on the host::

        norm = |gradients|                      # one read; finite if and only if they are
        if norm is finite and divisor > 0:
            optimizer steps with gradients / (S * divisor / nominal / clip_coef)
            commit: counters, schedule
        loss scale takes note, unless divisor == 0
        gradients = None

    On an accelerator with a fused optimizer the same happens without the host: the kernel holds
    by itself on `found_inf`, and the commit follows when the next update is launched or when
    somebody looks at the outcome.

    Args:
        optimizer: Any optimizer whose step needs no closure.
        loss_scale: See `as_loss_scale`.
        max_norm: Limit of the true gradient norm, or ``None``.
        clip: A callable on the parameters with their true gradients instead.
        fuse: See `OptimizerAdapter`.
        names: ``id(parameter)`` to name, for messages.
        stop_at_non_finite: Raise `NonFiniteGradientError` instead of skipping.
        on_commit: Called after each committed update with the number of updates and the consumed
            total.
        on_skip: Called when a window moves nothing, with 1.0; for an update that the kernel
            decides, at its launch with the undecided 0-d `found_inf`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        loss_scale: LossScale,
        *,
        max_norm: float | None = None,
        clip: Clip | None = None,
        fuse: str | bool = "auto",
        names: Mapping[int, str] | None = None,
        stop_at_non_finite: bool = False,
        on_commit: Callable[[int, float], None] | None = None,
        on_skip: Callable[[float | Tensor], None] | None = None,
    ) -> None:
        _check_clipping(max_norm, clip)
        self.loss_scale = loss_scale
        self.counters = Counters()
        self._optimizer = optimizer
        self._adapter = OptimizerAdapter(optimizer, fuse)
        self._collector = GradientCollector(optimizer)
        self._norm = GradientNorm()
        self._max_norm = max_norm
        self._clip = clip
        self._names = dict(names or {})
        self._stop_at_non_finite = stop_at_non_finite
        self._on_commit = on_commit
        self._on_skip: Callable[[float | Tensor], None] = on_skip or (lambda found_inf: None)
        self._unsettled: StepOutcome | None = None
        self._has_warned_of_zeros = False

    def parameters(self) -> list[Tensor]:
        """Every parameter of the optimizer."""
        return self._collector.all_parameters()

    def clear_gradients(self) -> None:
        """Set every gradient to ``None``."""
        self._collector.clear()

    def settle(self) -> None:
        """Commit the previous step if the host has not done so yet.

        Syncs: waits for that step, which is over by the time the next one is launched.
        """
        if (outcome := self._unsettled) is not None:
            outcome.settle()

    def unscale_(self, window: Window) -> None:
        """Make ``.grad`` the true gradients: unscaled and normalised, not clipped.

        Syncs: no.
        """
        grads = self._collector.collect()[1]
        unit = self._unit(window)
        if isinstance(unit, Tensor):
            harmless = torch.where(unit == 0, 1.0, unit)  # an empty window is dropped anyway
            torch._foreach_div_([values_of(grad) for grad in grads], harmless.float())
        elif unit and grads:
            divide_(grads, unit)
        window.true_gradients = True

    def run(self, window: Window) -> StepOutcome:
        """One step over a window that has at least one micro-batch.

        The gradients are ``None`` afterwards: after an update, a skip and an error.

        Raises:
            CallOrderError: No parameter has a gradient.
            NonFiniteGradientError: ``stop_at_non_finite`` and a gradient is not finite.
            ScaleCollapse: One skip in a row too many.

        Syncs: once, unless the optimizer can skip by itself (fused, on an accelerator).
        """
        try:
            self.settle()
            params, grads = self._collector.collect()
            if not grads:
                raise CallOrderError(
                    "no parameter of the optimizer received a gradient in this window"
                    f" ({self._some_names()}): either the loss does not depend on them, or"
                    " zero_grad() was called after backward."
                )
            measured = self._measure(window, params, grads)
            if self._may_defer(measured, params):
                return self._step_undecided(window, params, grads, measured)
            if measured.left_by_clip is not None:
                params, grads = self._collector.collect()  # the callable may have replaced some
            return self._step_decided(window, params, grads, measured)
        finally:
            self._collector.clear()
            torch.clear_autocast_cache()  # it holds casts of the weights as they were

    def _measure(self, window: Window, params: list[Tensor], grads: list[Tensor]) -> Measured:
        norm, unit = self._norm(grads, key=params), self._unit(window)
        known_bad = isinstance(norm, float) and not math.isfinite(norm)
        if self._clip is None or known_bad or (isinstance(unit, float) and unit == 0):
            return Measured(norm, unit)
        self.unscale_(window)
        self._clip(params)
        return Measured(norm, unit, self._norm(self._collector.collect()[1]))

    def _unit(self, window: Window) -> float | Tensor:
        if window.true_gradients:
            return 1.0
        weight = window.weight / window.nominal
        scale = self.loss_scale.value
        if isinstance(weight, Tensor) or scale.device.type != "cpu":
            return scale.double() * weight
        return float(scale) * weight

    def _may_defer(self, measured: Measured, params: list[Tensor]) -> bool:
        scale = self.loss_scale
        return (
            isinstance(measured.norm, Tensor)
            and self._clip is None
            and not self._stop_at_non_finite
            # near the end of the rope the host looks, so that the error can name parameters
            and scale.num_consecutive_skips < scale.max_consecutive_skips - 1
            and self._adapter.can_skip_itself(params)
        )

    def _step_decided(
        self, window: Window, params: list[Tensor], grads: list[Tensor], measured: Measured
    ) -> StepOutcome:
        """The step of an optimizer that cannot skip by itself: the host decides."""
        left = measured.norm if measured.left_by_clip is None else measured.left_by_clip
        norm, unit, norm_left, scale, loss, weight, *metrics = read_now(
            [measured.norm, measured.unit, left, self.loss_scale.value, *window.sums()]
        )
        _check_total(weight)
        if weight == 0:
            decision = Decision(0.0, math.nan, 1.0, 1.0)
        elif measured.left_by_clip is None or not math.isfinite(norm):
            decision = decide_on_host(norm, unit, self._max_norm, grads)
        else:
            checked = decide_on_host(norm_left, 1.0, None, grads)
            coef = min(1.0, norm_left * unit / norm) if norm else 1.0
            decision = replace(checked, grad_norm=norm / unit, clip_coef=coef)
        reason = reason_for(decision.found_inf, weight)
        if reason is not None:
            self._on_skip(1.0)
        if reason == "non_finite" and self._stop_at_non_finite:
            raise self._non_finite_error(scale, loss)
        attempt = Attempt.of(self.counters.attempts + 1, self._optimizer, window)
        if reason is None:
            self._adapter.apply(params, grads, decision.multiplier, None)
        next_scale = self._advance_loss_scale(reason, scale)
        if norm == 0 and reason is None:
            self._warn_of_zero_gradients()
        consumed = self._commit(reason, weight, attempt)
        numbers = Numbers(decision.grad_norm, decision.clip_coef, scale, loss, weight, metrics)
        outcome = StepOutcome(lambda: attempt.record(numbers, reason, float(next_scale), consumed))
        self._observe(reason, scale, outcome)
        return outcome

    def _step_undecided(
        self, window: Window, params: list[Tensor], grads: list[Tensor], measured: Measured
    ) -> StepOutcome:
        """The step of a fused optimizer on an accelerator: the kernel decides, nothing waits."""
        assert isinstance(measured.norm, Tensor)
        norm = measured.norm
        unit = on_device(measured.unit, norm.device)
        decision = decide_on_device(norm, unit, self._max_norm, grads)
        attempt = Attempt.of(self.counters.attempts + 1, self._optimizer, window)
        self._adapter.apply(params, grads, decision.multiplier, decision.found_inf)
        self._on_skip(decision.found_inf)
        scale = self.loss_scale.value.clone()
        self._advance_loss_scale_on_device(decision.found_inf, window.weight)
        facts = [decision.found_inf, decision.grad_norm, decision.clip_coef, scale]
        readback = Readback(pack([*facts, self.loss_scale.value, *window.sums()], norm.device))

        def settle() -> StepRecord:
            self._unsettled = None
            found_inf, grad_norm, coef, scale, next_scale, loss, weight, *metrics = readback.wait()
            _check_total(weight)
            reason = reason_for(found_inf, weight)
            consumed = self._commit(reason, weight, attempt)
            numbers = Numbers(grad_norm, coef, scale, loss, weight, metrics)
            record = attempt.record(numbers, reason, next_scale, consumed)
            self._observe(reason, scale, StepOutcome(lambda: record))
            return record

        self._unsettled = StepOutcome(settle)
        return self._unsettled

    def _commit(self, reason: Reason | None, weight: float, attempt: Attempt) -> float:
        """Move the counters and whatever hangs on them; returns the consumed total."""
        counters = self.counters
        counters.attempts = attempt.number
        if reason is None:
            counters.num_updates += 1
            counters.consumed += weight if attempt.has_divisor else 0.0
            if self._on_commit is not None:
                self._on_commit(counters.num_updates, counters.consumed)
        return counters.consumed

    def _advance_loss_scale(self, reason: Reason | None, scale_now: float) -> Number:
        """Let the scale take note of a decided window; returns the next scale, unread."""
        scale = self.loss_scale
        if reason != "empty_window":
            found_inf = 0.0 if reason is None else 1.0
            device = scale.value.device
            scale.adjust(torch.full((), found_inf, dtype=torch.float32, device=device))
        if scale.value.device.type == "cpu":
            return float(scale.value)
        return scale.value.clone() if scale.device_state() else scale_now

    def _advance_loss_scale_on_device(self, found_inf: Tensor, weight: Number) -> None:
        """The same for a window that may turn out to be empty, or not finite."""
        scale = self.loss_scale
        found_inf = found_inf.to(scale.value.device)
        if not isinstance(weight, Tensor):
            if weight:
                scale.adjust(found_inf)
            return
        before = [tensor.clone() for tensor in scale.device_state()]
        scale.adjust(found_inf)
        for tensor, old in zip(scale.device_state(), before, strict=True):
            tensor.copy_(torch.where(weight.to(tensor.device) == 0, old, tensor))

    def _observe(self, reason: Reason | None, scale: float, outcome: StepOutcome) -> None:
        if reason == "empty_window":
            return
        try:
            self.loss_scale.observe(reason is not None, scale)
        except ScaleCollapse as collapse:
            raise ScaleCollapse(
                collapse.num_skips, collapse.scales, self._bad_parameters(), outcome.record
            ) from None

    def _warn_of_zero_gradients(self) -> None:
        if not self._has_warned_of_zeros:
            self._has_warned_of_zeros = True
            logger.warning(
                "update %d: every gradient is exactly 0; was zero_grad(set_to_none=False) called"
                " after backward? (said once)",
                self.counters.num_updates + 1,
            )

    def _non_finite_error(self, scale: float, loss: float) -> NonFiniteGradientError:
        names = self._bad_parameters()
        kind = "finite" if math.isfinite(loss) else f"{loss}, not finite itself"
        return NonFiniteGradientError(
            f"a gradient is not finite at loss scale {scale:g}, first in {names[0]}"
            f" ({len(names)} of {len(self.parameters())} parameters); the loss was {kind}."
            " Nothing was updated."
            " diagnose='never' would skip this window and go on.",
            names,
        )

    def _bad_parameters(self) -> list[str]:
        names = non_finite_parameters(self._names, self.parameters())
        return names or ["a gradient that overflows when it is unscaled"]

    def _some_names(self) -> str:
        names = [self._names.get(id(p), "unnamed") for p in self.parameters()]
        return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _check_total(weight: float) -> None:
    """Device divisors are checked here, where the host first sees their sum."""
    if not (math.isfinite(weight) and weight >= 0):
        raise BadValueError(
            f"the divisors of this window add up to {weight}; each must be finite and not"
            " negative. Nothing was updated."
        )


def _check_clipping(max_norm: object, clip: object) -> None:
    if clip is not None and max_norm is not None:
        raise BadValueError(
            "max_norm and clip are two ways to clip; give one of them. A clip callable receives"
            " the parameters with their true gradients."
        )
    if clip is not None and not callable(clip):
        raise BadTypeError(f"clip must be a callable, got {type(clip).__name__}.")
    if max_norm is None:
        return
    if isinstance(max_norm, bool) or not isinstance(max_norm, (int, float)):
        raise BadTypeError(f"max_norm must be a number, got {type(max_norm).__name__}.")
    if not max_norm > 0:
        raise BadValueError(
            f"max_norm must be > 0, got {max_norm}; every update would be 0. Use None to not clip."
        )
