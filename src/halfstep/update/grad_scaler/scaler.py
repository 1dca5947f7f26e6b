"""`GradScaler`: torch's class with its defects closed; one import changes."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.amp.grad_scaler import OptState
from torch.optim import Optimizer

from halfstep.records import BadValueError, CallOrderError
from halfstep.records.keywords import explains_keywords
from halfstep.update.decision.multiplier import factors_for_loss_scale, factors_on_host
from halfstep.update.grad_scaler.last_step import LastStep, rates_of
from halfstep.update.grad_scaler.optimizer_call import OptimizerCall, closure_of
from halfstep.update.grad_scaler.state import _UNLIMITED, ScalerState
from halfstep.update.loss_scale.base import checked_scale, promote
from halfstep.update.loss_scale.dynamic import OTHER_NAMES, DynamicLossScale
from halfstep.update.optimizers.gradients import Gradients, divide_, values_of
from halfstep.update.readback import Number, check_float64, on_device, read_now
from halfstep.update.step.outcome import StepOutcome

_CLIPS = dict.fromkeys(
    ("max_norm", "max_grad_norm", "grad_clip"), "call scaler.clip_grad_norm_(optimizer, max_norm)"
)


class _Step(NamedTuple):
    """One call of `step`: its optimizer, the window's state of that, gradients and arguments."""

    call: OptimizerCall
    state: dict[str, Any]
    gradients: Gradients
    norm: Number
    args: Sequence[Any]
    options: Mapping[str, Any]

    def close(self) -> None:
        """No second step and no second clip for this window."""
        self.state["stage"], self.call.max_norm = OptState.STEPPED, None
        self.call.shared.window_closes()

    def record_found_inf(self, found_inf: Tensor) -> None:
        """Leave for `update` what was found, under torch's name."""
        self.state["found_inf_per_device"] = {found_inf.device: found_inf}


class _HostStep(NamedTuple):
    skipped: bool
    loss_scale: float


class GradScaler(ScalerState):
    """Drop-in for `torch.amp.GradScaler`: the same calls, plus bounds and an explicit outcome.

    Different from torch, on purpose:

    * The scale stays inside ``[min_scale, max_scale]``.
    * `step` checks the gradients as they are *then*: what a hook or your own clipping broke after
      `unscale_`, and what the division itself makes inf, is a skip.
    * A fused optimizer is never called on an overflow that the host knows of, so that it makes no
      uninitialised state; `last_outcome` says what happened.
    * A second `update` for the same `scale` counts neither growth nor back-off twice, and a step
      between the two still divides by the scale that its gradients carry.
    * One-element FP16 losses are scaled in FP32.

    Args:
        device: As in torch, but ``None`` takes CUDA where there is one, else the CPU (torch's
            default is "cuda", which on a CPU warns once and trains FP16 unscaled).
        init_scale: Outside of the bounds it widens them.
        growth_factor, backoff_factor, growth_interval, enabled: As in torch.
        min_scale, max_scale, hysteresis: As in `DynamicLossScale`.
        max_consecutive_skips: Raise `ScaleCollapse` after so many skips in a row; ``None`` never.

    Example:
        >>> import torch, halfstep as hs
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> scaler = hs.GradScaler("cpu")
        >>> scaler.scale(model(torch.ones(2, 4)).mean()).backward()
        >>> norm = scaler.clip_grad_norm_(optimizer, max_norm=1.0)
        >>> scaler.step(optimizer); scaler.update()
        >>> scaler.last_outcome.updated
        True
    """

    @explains_keywords("GradScaler", OTHER_NAMES | _CLIPS)
    def __init__(
        self,
        device: str | None = None,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        *,
        min_scale: float = 1.0,
        max_scale: float = 2.0**24,
        hysteresis: int = 1,
        max_consecutive_skips: int | None = None,
    ) -> None:
        scale = DynamicLossScale(
            checked_scale("init_scale", init_scale),
            growth_factor,
            backoff_factor,
            growth_interval,
            min_scale=min(min_scale, init_scale),
            max_scale=max(max_scale, init_scale),
            hysteresis=hysteresis,
            max_consecutive_skips=max_consecutive_skips or _UNLIMITED,
        )
        super().__init__(device, scale, enabled)
        if self._enabled and self._device != "cuda":  # CUDA has it; asking would start the device
            check_float64(torch.device(self._device))
        self._calls: dict[Optimizer, OptimizerCall] = {}
        self._carried: Number | None = None  # the scale that the present gradients carry
        self._found_before: Tensor | None = None  # found_inf of an earlier update of this window
        self._host_steps: list[_HostStep] = []  # of the window, as far as the host decided them
        self._skipped_at: float | None = None  # a skip whose effect on the scale nobody has seen
        self._has_warned = False
        self._last_step: LastStep | None = None
        self._last_outcome: StepOutcome | None = None

    @property
    def last_outcome(self) -> StepOutcome | None:
        """What the last `step` did; ``None`` before the first and after one that raised.

        Its loss is unknown (NaN), and so is the gradient norm of a disabled scaler that was not
        asked to clip, and of an optimizer whose ``step`` takes the scaler itself.

        Syncs: only its fields do, and only for fused optimizers on an accelerator.
        """
        if self._last_outcome is None and self._last_step is not None:
            self._last_outcome = self._last_step.outcome()
        return self._last_outcome

    def scale(self, outputs: Any) -> Any:
        """Multiply a loss, or any nesting of losses, by the scale; half precision in FP32.

        Args:
            outputs: A tensor or an iterable of tensors.
        """
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            if not self._is_placed:
                self._lazy_init_scale_growth_tracker(outputs.device)
            scale = self._dynamic.value.to(outputs.device, non_blocking=True)
            self._carried, self._found_before = None, None
            return (promote(outputs) if outputs.is_floating_point() else outputs) * scale
        if isinstance(outputs, (list, tuple)):
            return type(outputs)(self.scale(output) for output in outputs)
        if isinstance(outputs, Iterable):
            return map(self.scale, outputs)
        raise BadValueError(
            f"outputs must be a Tensor or an iterable of Tensors, got {type(outputs).__name__}."
        )

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients of `optimizer` by the scale that they carry.

        Args:
            optimizer: Once per optimizer and window, after the last backward.

        Raises:
            CallOrderError: Twice, after `step`, or without `scale`.

        Syncs: no.
        """
        if not self._enabled:
            return
        state = self._state_for(optimizer, "unscale_")
        if state["stage"] is OptState.UNSCALED:
            raise CallOrderError(
                "unscale_() has already been called on this optimizer since the last update()."
            )
        carried, device = self._carried_scale(), self._dynamic.value.device
        found_inf = torch.full((), 0.0, dtype=torch.float32, device=device)
        if isinstance(carried, Tensor):
            inverse = carried.double().reciprocal().float()
        else:
            inverse = torch.full((), 1.0 / carried, dtype=torch.float32)
        found = self._unscale_grads_(optimizer, inverse, found_inf, False)
        shared = self._call_of(optimizer).shared
        if shared.is_sharded:
            found = found or {device: found_inf}  # a rank may have no part of anything
            found = {where: shared.any_found(flag) for where, flag in found.items()}
        state["found_inf_per_device"] = found
        state["stage"] = OptState.UNSCALED

    def _unscale_grads_(
        self, optimizer: Optimizer, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool
    ) -> dict[torch.device, Tensor]:
        """As in torch, with complex gradients, which torch's kernel refuses."""
        gradients = self._call_of(optimizer).collector.collect()
        values = gradients.grads
        if not gradients.are_dense:
            values = [values_of(grad) for grad in values]
        dtypes = {value.dtype for value in values}
        if torch.float16 in dtypes and not allow_fp16:
            raise BadValueError("Attempting to unscale FP16 gradients.")
        if any(dtype.is_complex for dtype in dtypes):
            values = [torch.view_as_real(v) if v.is_complex() else v for v in values]
        kinds = {(value.device, value.dtype) for value in values}
        found: dict[torch.device, Tensor] = {}
        with torch.no_grad():
            for device, dtype in kinds:
                grads = values
                if len(kinds) > 1:
                    grads = [v for v in values if v.device == device and v.dtype is dtype]
                flag = found.setdefault(device, found_inf.to(device, non_blocking=True))
                inverse = inv_scale.to(device, non_blocking=True)
                torch._amp_foreach_non_finite_check_and_unscale_(grads, flag, inverse)
        return found

    def clip_grad_norm_(self, optimizer: Optimizer, max_norm: float) -> Number:
        """Clip the true gradients of `optimizer` in its next `step`, before or after `unscale_`.

        The gradients are not touched here: clipping is a part of the one division of the step.

        Args:
            optimizer: The optimizer whose parameters to clip.
            max_norm: Limit of the true norm, > 0.

        Returns:
            The true norm before clipping: a float on a CPU, else a 0-d float64 tensor.

        Raises:
            BadValueError: `max_norm` is not positive.
            CallOrderError: After `step`, or without `scale`.

        Syncs: no.
        """
        if not max_norm > 0:
            raise BadValueError(f"max_norm must be > 0, got {max_norm}; every update would be 0.")
        call = self._call_of(optimizer)
        norm = call.measure(call.collector.collect())
        if not self._enabled:
            call.clip_now(norm, max_norm)
            return norm
        state = self._state_for(optimizer, "clip_grad_norm_")
        call.max_norm = max_norm
        if state["stage"] is OptState.UNSCALED:
            return norm
        return norm / self._carried_scale()

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """Check, divide by scale and clip coefficient, and step; or skip.

        Args:
            optimizer: The optimizer that applies the gradients.
            args, kwargs: For ``optimizer.step``; a closure is refused, unless it is ``None``.

        Returns:
            What ``optimizer.step`` returned, ``None`` for a skipped step.

        Raises:
            CallOrderError: Without `scale`, twice without `update`, or with a closure.

        Syncs: once, as in torch, unless the optimizer is fused and on an accelerator; then only
            for its first step, and where somebody has replaced ``optimizer.step``.
        """
        self._last_step = self._last_outcome = None  # of no earlier step, if this one raises
        if not self._enabled:
            return self._step_disabled(optimizer, args, kwargs)
        if closure_of(args, kwargs) is not None:
            raise CallOrderError(
                "GradScaler.step takes no closure: the optimizer would run forward and backward"
                " again on gradients that are scaled. Call step(optimizer) after your own backward."
            )
        state = self._state_for(optimizer, "step")
        call = self._call_of(optimizer)
        call.num_steps += 1
        if call.takes_grad_scaler:
            return self._step_with_scaler(call, state, args, kwargs)
        gradients = call.collector.collect()
        scale = self._carried_scale()
        call.shared.check_scales(self._told)
        if (
            not gradients.grads and not call.shared.is_sharded
        ):  # nothing to apply, and nothing learnt about the scale
            state["stage"], call.max_norm = OptState.STEPPED, None
            rates = rates_of(optimizer)
            self._last_step = LastStep(call.num_steps, rates, scale, 0.0, 0.0, reason="no_gradient")
            return None
        norm = call.measure(gradients)
        step = _Step(call, state, gradients, norm, args, kwargs)
        if isinstance(norm, Tensor) and call.can_skip_itself(gradients):
            return self._launch(step, norm)
        return self._decide_and_step(step)

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Close the window: let the scale grow or back off, inside its bounds.

        Args:
            new_scale: Sets the scale instead; outside of the bounds it widens them.

        Syncs: no, but for a tensor `new_scale`.

        Raises:
            ScaleCollapse: Only where `max_consecutive_skips` was given.
        """
        if not self._enabled:
            return
        if self._scale is None:
            raise CallOrderError("update() before scale(loss): there is no scale to update.")
        live = self._dynamic.value
        before = float(live) if live.is_cpu else live.clone()
        if new_scale is not None:
            self._set_scale(float(new_scale))
            self._skipped_at = None
        else:
            self._adjust_for(self._found_infs())
        if self._carried is None:
            self._carried = before
        if self._last_step is not None and self._last_step.loss_scale is live:
            self._last_step.loss_scale = before  # the live one has moved
        self._per_optimizer_states.clear()
        self._conclude(before, is_set=new_scale is not None)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As in `ScalerState`; what the last window left is forgotten.

        Args:
            state_dict: What `state_dict` of this class or of torch's returned.
        """
        super().load_state_dict(state_dict)
        self._carried = self._found_before = self._skipped_at = None
        for call in self._calls.values():
            call.shared.forget()

    def __getstate__(self) -> dict[str, Any]:
        if self._enabled and self._per_optimizer_states:
            raise CallOrderError(
                "a GradScaler can be pickled at the beginning of an iteration, or after update()."
            )
        forgotten = ("_carried", "_found_before", "_last_step", "_last_outcome")
        return {**super().__getstate__(), "_calls": {}, **dict.fromkeys(forgotten)}

    def _call_of(self, optimizer: Optimizer) -> OptimizerCall:
        call = self._calls.get(optimizer)
        if call is None:
            call = self._calls[optimizer] = OptimizerCall(optimizer)
        return call

    def _state_for(self, optimizer: Optimizer, call: str) -> dict[str, Any]:
        """The window's state of an optimizer that was not stepped yet."""
        if self._scale is None:
            raise CallOrderError(f"{call}() before scale(loss): the gradients carry no scale.")
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"] is OptState.STEPPED:
            raise CallOrderError(
                f"{call}() after step(): step() has already been called since the last update()."
            )
        return state

    def _told(self) -> list[float]:
        """What the scales of all processes must have in common."""
        dynamic = self._dynamic
        told = [self._carried_scale(), self._growth_tracker, dynamic.growth_factor]
        told += [dynamic.backoff_factor, dynamic.growth_interval]
        return [0.0 if each is None else float(each) for each in told]

    def _carried_scale(self) -> Number:
        """What the gradients were scaled by: a float where the scale is on the CPU."""
        if self._carried is not None:
            return self._carried
        live = self._dynamic.value
        return float(live) if live.is_cpu else live

    def _launch(self, step: _Step, norm: Tensor) -> float | None:
        """Step without knowing whether the update may happen; nothing waits."""
        call, scale = step.call, self._carried_scale()
        unit: Number = 1.0
        if step.state["stage"] is not OptState.UNSCALED:
            is_there = isinstance(scale, Tensor) and scale.device == norm.device
            unit = scale if is_there else on_device(scale, norm.device).float()
        preset = call.take_grad_scale()
        if preset is not None:
            unit = on_device(unit * preset, norm.device).float()
        factors = factors_for_loss_scale(norm, unit, call.max_norm, step.gradients.grads)
        found_inf = factors.found_inf
        for earlier in step.state["found_inf_per_device"].values():
            found_inf = torch.maximum(found_inf, earlier.to(found_inf.device))
        step.record_found_inf(found_inf)
        step.close()
        rates = rates_of(call.optimizer)
        returned = call.launch(
            step.gradients, factors.multiplier, found_inf, step.args, step.options
        )
        self._last_step = LastStep(
            call.num_steps, rates, scale, found_inf, factors.grad_norm, factors.clip_coef
        )
        return returned

    def _decide_and_step(self, step: _Step) -> float | None:
        """The host's decision, in one wait, and what follows from it."""
        call, grads = step.call, step.gradients.grads
        preset = call.take_grad_scale()
        earlier = step.state["found_inf_per_device"].values()
        norm, scale, unit, *found_before = read_now(
            [step.norm, self._carried_scale(), 1.0 if preset is None else preset, *earlier]
        )
        self._judge_skip(scale)
        if step.state["stage"] is not OptState.UNSCALED:
            unit *= scale
        factors = factors_on_host(norm, unit, call.max_norm, grads)
        # an overflow that was papered over after unscale_ is still one
        skipped = bool(factors.found_inf) or any(found_before)
        if found_before == [skipped]:
            (found_inf,) = step.state["found_inf_per_device"].values()
        else:
            device = grads[0].device if grads else self._dynamic.value.device
            found_inf = torch.full((), skipped, dtype=torch.float32, device=device)
            step.record_found_inf(found_inf)
        self._host_steps.append(_HostStep(skipped, scale))
        rates = rates_of(call.optimizer)
        returned = None if skipped else self._apply(step, factors.multiplier, found_inf)
        step.close()
        self._last_step = LastStep(
            call.num_steps, rates, scale, float(skipped), factors.grad_norm, factors.clip_coef
        )
        return returned

    def _apply(self, step: _Step, multiplier: float, found_inf: Tensor) -> float | None:
        call = step.call
        if not call.divides_first(step.args, step.options):
            step.close()
            return call.apply(step.gradients, multiplier)
        divide_(step.gradients.grads, multiplier)
        # as in torch: if the optimizer raises, step may be called again on unscaled gradients
        step.state["stage"], call.max_norm = OptState.UNSCALED, None
        return call.step(step.gradients, found_inf, step.args, step.options)

    def _step_with_scaler(
        self,
        call: OptimizerCall,
        state: dict[str, Any],
        args: Sequence[Any],
        options: dict[str, Any],
    ) -> float | None:
        """Hand the scaler to an optimizer that unscales and checks by itself."""
        options.pop("closure", None)
        rates, scale = rates_of(call.optimizer), self._carried_scale()
        returned = super().step(call.optimizer, *args, **options)
        device = self._dynamic.value.device
        found = [flag.to(device) for flag in state["found_inf_per_device"].values()]
        found_inf = torch.stack(found).amax() if found else 0.0
        self._last_step = LastStep(call.num_steps, rates, scale, found_inf)
        return returned

    def _step_disabled(
        self, optimizer: Optimizer, args: Sequence[Any], options: Mapping[str, Any]
    ) -> float | None:
        """An ordinary step; its norm is known where `clip_grad_norm_` computed it."""
        call = self._call_of(optimizer)
        call.num_steps += 1
        rates = rates_of(optimizer)
        clipped, call.clipped = call.clipped, None
        returned: float | None = optimizer.step(*args, **options)
        self._last_step = LastStep(call.num_steps, rates, 1.0)
        if clipped is not None:
            self._last_step.grad_norm, self._last_step.max_norm = clipped
        return returned

    def _found_infs(self) -> list[Tensor]:
        states = self._per_optimizer_states.values()
        return [found for state in states for found in state["found_inf_per_device"].values()]

    def _adjust_for(self, found_infs: list[Tensor]) -> None:
        if not found_infs:
            return  # no optimizer had a gradient: nothing was learnt about the scale
        device = self._dynamic.value.device
        flags = [found.to(device, non_blocking=True) for found in found_infs]  # 0.0 or 1.0
        found_inf = flags[0] if len(flags) == 1 else torch.stack(flags).amax()
        if self._found_before is None:
            self._dynamic.note_window(found_inf)
            self._found_before = found_inf
            return
        # a second update for the same losses: only an overflow that is new changes anything
        is_new = found_inf * (1 - self._found_before)
        self._dynamic.note_window(is_new, is_new)
        self._found_before = torch.maximum(found_inf, self._found_before)

    def _conclude(self, before: Number, is_set: bool) -> None:
        """What the host knows of the window: the skip counter and the one warning."""
        steps, self._host_steps = self._host_steps, []
        if not steps:
            return
        skips = [step for step in steps if step.skipped]
        if not skips:
            self._dynamic.observe(False, 0.0)
            return
        scale = skips[0].loss_scale if isinstance(before, Tensor) else before
        if not is_set:
            self._skipped_at = scale
            if not isinstance(
                before, Tensor
            ):  # a device is not asked: the next step reads its scale anyway
                self._judge_skip(float(self._dynamic.value))
        self._dynamic.observe(True, scale)

    def _judge_skip(self, scale: float) -> None:
        """Warn once if a skip has left the scale where it was."""
        before, self._skipped_at = self._skipped_at, None
        if before is None or self._has_warned or scale < before:
            return
        self._has_warned = True
        warnings.warn(
            "a step was skipped and the loss scale stayed where it is (floor or hysteresis):"
            " comparing scales no longer tells a skip; ask scaler.last_outcome.skipped.",
            UserWarning,
            stacklevel=4,
        )
