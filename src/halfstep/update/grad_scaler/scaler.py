"""`GradScaler`: torch's class with its defects closed; one import changes."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import OptState
from torch.optim import Optimizer

from halfstep.records import BadValueError, CallOrderError
from halfstep.update.decision.measured import StepNumbers, reason_for
from halfstep.update.decision.multiplier import Factors, factors_on_device, factors_on_host
from halfstep.update.grad_scaler.state import _UNLIMITED, ScalerState
from halfstep.update.loss_scale.base import checked_scale, promote
from halfstep.update.loss_scale.dynamic import DynamicLossScale
from halfstep.update.optimizers.adapter import OptimizerAdapter
from halfstep.update.optimizers.gradients import GradientCollector
from halfstep.update.optimizers.norm import GradientNorm
from halfstep.update.optimizers.sharded import refuse_sharded
from halfstep.update.readback import Number, Readback, on_device, pack, read_now
from halfstep.update.step.launched_step import LaunchedStep
from halfstep.update.step.outcome import StepOutcome
from halfstep.update.step.window import Window


class _Tools:
    """What is kept per optimizer between steps."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.adapter = OptimizerAdapter(optimizer, fuse=False)
        self.collector = GradientCollector(optimizer)
        self.norm = GradientNorm()
        self.max_norm: float | None = None
        self.attempts = 0


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
        self._tools: dict[Optimizer, _Tools] = {}
        self._carried: Tensor | None = None  # the scale that the present gradients carry
        self._found_before: Tensor | None = None  # found_inf of an earlier update of this window
        self._host_skipped: list[bool] = []
        self._has_warned = False
        self._last_outcome: StepOutcome | None = None

    @property
    def last_outcome(self) -> StepOutcome | None:
        """What the last `step` did; ``None`` before the first. Its loss is unknown (NaN).

        Syncs: only its fields do, and only for fused optimizers on an accelerator.
        """
        return self._last_outcome

    def scale(self, outputs: Any) -> Any:
        """Multiply a loss, or any nesting of losses, by the scale; half precision in FP32.

        Args:
            outputs: A tensor or an iterable of tensors.
        """
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            if outputs.is_floating_point():
                outputs = promote(outputs)
        elif isinstance(outputs, (list, tuple)):
            return type(outputs)(self.scale(output) for output in outputs)
        elif isinstance(outputs, Iterable):
            return map(self.scale, outputs)
        scaled = super().scale(outputs)
        self._carried, self._found_before = None, None
        return scaled

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
        refuse_sharded(optimizer)
        state = self._state_for(optimizer, "unscale_")
        if state["stage"] is OptState.UNSCALED:
            raise CallOrderError(
                "unscale_() has already been called on this optimizer since the last update()."
            )
        carried = self._carried_scale()
        found_inf = torch.full((), 0.0, dtype=torch.float32, device=carried.device)
        inverse = carried.double().reciprocal().float()
        state["found_inf_per_device"] = self._unscale_grads_(optimizer, inverse, found_inf, False)
        state["stage"] = OptState.UNSCALED

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
        tools = self._tools_of(optimizer)
        params, grads, are_dense = tools.collector.collect()
        norm = tools.norm(grads, key=params, are_dense=are_dense)
        if not self._enabled:
            torch.nn.utils.clip_grad_norm_(tools.collector.all_parameters(), max_norm)
            return norm
        unit = self._unit(self._state_for(optimizer, "clip_grad_norm_"))
        tools.max_norm = max_norm
        return norm / unit

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """Check, divide by scale and clip coefficient, and step; or hold.

        Args:
            optimizer: The optimizer that applies the gradients.
            args: Refused: the only positional argument of a step is a closure.
            kwargs: For ``optimizer.step``; a closure is refused.

        Returns:
            What ``optimizer.step`` returned, ``None`` for a held step.

        Raises:
            CallOrderError: Without `scale`, twice without `update`, or with a closure.

        Syncs: once, as in torch, unless the optimizer is fused and on an accelerator.
        """
        if not self._enabled:
            returned: float | None = optimizer.step(*args, **kwargs)
            return returned
        if args or "closure" in kwargs:
            raise CallOrderError(
                "GradScaler.step takes no closure: the optimizer would run forward and backward"
                " again on gradients that are scaled. Call step(optimizer) after your own backward."
            )
        state = self._state_for(optimizer, "step")
        if "grad_scaler" in inspect.signature(optimizer.step).parameters:
            return super().step(optimizer, **kwargs)
        tools = self._tools_of(optimizer)
        tools.attempts += 1
        unit, max_norm = self._unit(state), tools.max_norm
        state["stage"], tools.max_norm = OptState.STEPPED, None
        gradients = tools.collector.collect()
        params, grads, are_dense = gradients
        if not grads:
            return None  # nothing to apply, and nothing learnt about the scale
        norm = tools.norm(grads, key=params, are_dense=are_dense)
        launched = LaunchedStep.of(tools.attempts, optimizer, Window())
        if isinstance(norm, Tensor) and not kwargs and tools.adapter.can_skip_itself(params):
            undecided = factors_on_device(norm, on_device(unit, norm.device), max_norm, grads)
            found_inf = self._record_found_inf(state, undecided.found_inf)
            tools.adapter.apply(gradients, undecided.multiplier, found_inf)
            self._note_undecided(launched, replace(undecided, found_inf=found_inf))
            return None
        decision = self._decide(state, norm, unit, max_norm, grads)
        self._note_decided(launched, decision)
        if decision.found_inf:
            return None
        result: float | None = tools.adapter.apply(gradients, decision.multiplier, None, **kwargs)
        return result

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
        before = self._dynamic.value.clone()
        if new_scale is not None:
            self._set_scale(float(new_scale))
        else:
            self._adjust_for(self._found_infs())
        if self._carried is None:
            self._carried = before
        self._per_optimizer_states.clear()
        self._conclude(before)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As in `ScalerState`; what the last window left is forgotten.

        Args:
            state_dict: What `state_dict` of this class or of torch's returned.
        """
        super().load_state_dict(state_dict)
        self._carried, self._found_before = None, None

    def __getstate__(self) -> dict[str, Any]:
        if self._per_optimizer_states:
            raise CallOrderError(
                "a GradScaler can be pickled at the beginning of an iteration, or after update()."
            )
        return {**self.__dict__, "_tools": None, "_last_outcome": None, "_carried": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._tools = {}

    def _tools_of(self, optimizer: Optimizer) -> _Tools:
        refuse_sharded(optimizer)
        if optimizer not in self._tools:
            self._tools[optimizer] = _Tools(optimizer)
        return self._tools[optimizer]

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

    def _carried_scale(self) -> Tensor:
        return self._dynamic.value if self._carried is None else self._carried

    def _unit(self, state: dict[str, Any]) -> Number:
        """What the gradients carry: the scale of their window, or 1 after `unscale_`."""
        if state["stage"] is OptState.UNSCALED:
            return 1.0
        carried = self._carried_scale()
        return float(carried) if carried.is_cpu else carried.double()

    def _record_found_inf(self, state: dict[str, Any], found_inf: Tensor) -> Tensor:
        """Join with what `unscale_` found; exactly 0.0 or 1.0."""
        earlier = [t.to(found_inf.device) for t in state["found_inf_per_device"].values()]
        worst = torch.stack([found_inf, *earlier]).amax()
        state["found_inf_per_device"] = {found_inf.device: worst}
        return worst

    def _decide(
        self,
        state: dict[str, Any],
        norm: Number,
        unit: Number,
        max_norm: float | None,
        grads: list[Tensor],
    ) -> Factors[float]:
        """The host's decision, in one wait; recorded for `update`."""
        earlier = state["found_inf_per_device"].values()
        host_norm, host_unit, *found_before = read_now([norm, unit, *earlier])
        decision = factors_on_host(host_norm, host_unit, max_norm, grads)
        if any(found_before):  # an overflow that was papered over after unscale_ is still one
            decision = replace(decision, found_inf=1.0)
        found_inf = torch.full((), decision.found_inf, dtype=torch.float32, device=grads[0].device)
        self._record_found_inf(state, found_inf)
        self._host_skipped.append(bool(decision.found_inf))
        return decision

    def _found_infs(self) -> list[Tensor]:
        states = self._per_optimizer_states.values()
        return [found for state in states for found in state["found_inf_per_device"].values()]

    def _adjust_for(self, found_infs: list[Tensor]) -> None:
        if not found_infs:
            return  # no optimizer had a gradient: nothing was learnt about the scale
        device = self._dynamic.value.device
        found_inf = torch.stack([found.to(device) for found in found_infs]).amax()  # 0.0 or 1.0
        if self._found_before is None:
            self._dynamic.note_window(found_inf)
            self._found_before = found_inf
            return
        # a second update for the same losses: only an overflow that is new changes anything
        is_new = found_inf * (1 - self._found_before)
        self._dynamic.note_window(is_new, is_new)
        self._found_before = torch.maximum(found_inf, self._found_before)

    def _conclude(self, before: Tensor) -> None:
        """What the host knows of the window: the skip counter and the one warning."""
        decided, self._host_skipped = self._host_skipped, []
        if not decided:
            return
        skipped = any(decided)
        scale = float(before) if skipped else 0.0
        if skipped and not self._has_warned and float(self._dynamic.value) >= scale:
            self._has_warned = True
            warnings.warn(
                "a step was skipped and the loss scale stayed where it is (floor or hysteresis):"
                " comparing scales no longer tells a skip; ask scaler.last_outcome.skipped.",
                UserWarning,
                stacklevel=3,
            )
        self._dynamic.observe(skipped, scale)

    def _note_decided(self, launched: LaunchedStep, decision: Factors[float]) -> None:
        scale = float(self._dynamic.value)
        numbers = StepNumbers(decision.grad_norm, decision.clip_coef, scale, math.nan, 1.0, ())
        reason = reason_for(decision.found_inf, 1.0)
        self._last_outcome = StepOutcome(lambda: launched.record(numbers, reason, scale, 0.0))

    def _note_undecided(self, launched: LaunchedStep, decision: Factors[Tensor]) -> None:
        facts = [decision.found_inf, decision.grad_norm, decision.clip_coef, self._dynamic.value]
        readback = Readback(pack(facts, decision.grad_norm.device))

        def settle() -> Any:
            found_inf, grad_norm, clip_coef, scale = readback.wait()
            numbers = StepNumbers(grad_norm, clip_coef, scale, math.nan, 1.0, ())
            return launched.record(numbers, reason_for(found_inf, 1.0), scale, 0.0)

        self._last_outcome = StepOutcome(settle)
