"""Loss scales: dynamic, static and none, with the same methods."""

from __future__ import annotations

import logging
import math
from collections import deque
from typing import Any

import torch
from torch import Tensor

from halfstep.records import BadTypeError, BadValueError, ScaleCollapse

logger = logging.getLogger("halfstep")


class LossScale:
    """What the loss is multiplied by so that small gradients survive FP16.

    The base class holds a constant scale and counts skips; `NoLossScale`, `StaticLossScale` and
    `DynamicLossScale` are what you construct. All live on the device of the loss and none makes
    the host wait.

    Args:
        init_scale: The factor S, positive and finite.
        max_consecutive_skips: After this many skips in a row `ScaleCollapse` is raised: a run
            that skips every update looks alive and learns nothing.
    """

    def __init__(self, init_scale: float, max_consecutive_skips: int) -> None:
        if max_consecutive_skips < 1:
            raise BadValueError(
                f"max_consecutive_skips must be at least 1, got {max_consecutive_skips}."
            )
        self.max_consecutive_skips = max_consecutive_skips
        self.num_consecutive_skips = 0
        self._scale = torch.tensor(checked_scale("init_scale", init_scale), dtype=torch.float32)
        self._scales_at_skips: deque[float] = deque(maxlen=64)

    @property
    def value(self) -> Tensor:
        """The current scale, a 0-d float32 tensor on the device of the loss (read-only)."""
        return self._scale

    def scale(self, loss: Tensor) -> Tensor:
        """Multiply the loss by the scale, in FP32.

        Args:
            loss: Any shape, floating. FP16 and BF16 are promoted first: a one-element FP16 loss
                times 65536 would be inf.

        Returns:
            float32 (float64 for a float64 loss), same shape, with the graph of `loss`.

        Syncs: no.
        """
        self.to(loss.device)
        return promote(loss) * self._scale

    def update(self, found_inf: Tensor) -> None:
        """Take note of one window.

        Args:
            found_inf: 0-d float32, 1.0 if a gradient held inf or NaN, else 0.0.

        Raises:
            ScaleCollapse: `found_inf` is on the CPU and this was one skip in a row too many. For
                a device tensor call `observe` once the host knows.

        Syncs: no.
        """
        self.adjust(found_inf.to(self._scale.device))
        if found_inf.device.type == "cpu":
            self.observe(bool(found_inf), float(self._scale))

    def adjust(self, found_inf: Tensor) -> None:
        """The device half of `update`: change the scale, leave the skip counter to `observe`.

        Args:
            found_inf: 0-d float32 on the device of the scale.
        """

    def device_state(self) -> list[Tensor]:
        """The tensors that `adjust` changes, for a caller that may have to put them back."""
        return []

    def observe(self, skipped: bool, next_scale: float) -> None:
        """Tell the host-side counters how a window ended.

        Args:
            skipped: Whether the gradients were not finite.
            next_scale: The scale after `update`.

        Raises:
            ScaleCollapse: `max_consecutive_skips` skips in a row.
        """
        if not skipped:
            self.num_consecutive_skips = 0
            self._scales_at_skips.clear()
            return
        self.num_consecutive_skips += 1
        self._scales_at_skips.append(next_scale)
        if self.num_consecutive_skips >= self.max_consecutive_skips:
            raise ScaleCollapse(self.num_consecutive_skips, list(self._scales_at_skips))

    def to(self, device: torch.device) -> None:
        """Move the scale to `device`; nothing happens if it is there."""
        if self._scale.device != device:
            self._scale = self._scale.to(device)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on: ``scale`` and the skip counter.

        Syncs: yes, the scale is read.
        """
        return {"scale": float(self._scale), "num_consecutive_skips": self.num_consecutive_skips}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` of the same class returned.

        Raises:
            BadValueError: A field is missing or the scale is not positive and finite.
        """
        if "scale" not in state:
            raise BadValueError(
                f"expected the state of a {type(self).__name__} with a 'scale', got the keys"
                f" {sorted(state)}; a disabled torch GradScaler saves an empty state."
            )
        self._scale.fill_(checked_scale("scale", state["scale"]))
        self.num_consecutive_skips = int(state.get("num_consecutive_skips", 0))
        self._scales_at_skips.clear()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({float(self._scale):g})"


class NoLossScale(LossScale):
    """No scaling, for BF16 and FP32: the same methods, a factor of 1.

    Gradients are still checked and a bad window is still skipped.
    """

    def __init__(self, max_consecutive_skips: int = 50) -> None:
        super().__init__(1.0, max_consecutive_skips)

    def scale(self, loss: Tensor) -> Tensor:
        """The loss itself, in FP32."""
        self.to(loss.device)
        return promote(loss)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the skip counter; a state with another scale belongs to another class."""
        if state.get("scale", 1.0) != 1.0:
            raise BadValueError(
                f"this run uses no loss scale, the state has {state['scale']:g}; continue with"
                " the loss_scale of the run that wrote it, or leave this state out."
            )
        super().load_state_dict({"scale": 1.0, **state})


class StaticLossScale(LossScale):
    """A constant scale. Powers of two change no bit of an FP32 update.

    Args:
        scale: The factor, positive and finite.
        max_consecutive_skips: As in `DynamicLossScale`.
    """

    def __init__(self, scale: float, max_consecutive_skips: int = 50) -> None:
        super().__init__(scale, max_consecutive_skips)


class DynamicLossScale(LossScale):
    """A scale that searches for the largest value without overflow.

    In pseudo-code, after every window::

        if found_inf:
            good = 0; skips += 1
            if skips >= hysteresis: scale = max(min_scale, scale * backoff_factor)
        else:
            good += 1
            if good >= growth_interval:
                good = skips = 0; scale = min(max_scale, scale * growth_factor)

    torch's `GradScaler` is the same with ``hysteresis=1``, no floor and no ceiling: its scale can
    fall to 2^-128, where times 1/scale = inf is applied to the weights and counted as a good step.

    Args:
        init_scale: First scale. 2^16 overflows in most models for the first few windows: that is
            the search, not an error.
        growth_factor: > 1.
        backoff_factor: Between 0 and 1, exclusive.
        growth_interval: Good windows in a row before the scale grows.
        min_scale: Floor, positive. Below 1 only on request: a model that needs it makes
            gradients beyond 65504 on its own.
        max_scale: Ceiling.
        hysteresis: Backs off from the hysteresis-th skip after the last growth on (1 = at once).
        max_consecutive_skips: `ScaleCollapse` after so many skips in a row.

    Source: Micikevicius et al. 2018, Mixed Precision Training, section 3.2; torch 2.13
    `torch/amp/grad_scaler.py`; the hysteresis is Megatron-LM's.

    Example:
        >>> import torch, halfstep as hs
        >>> scale = hs.DynamicLossScale(init_scale=2.0**10)
        >>> scale.update(torch.tensor(1.0))
        >>> float(scale.value)
        512.0
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        min_scale: float = 1.0,
        max_scale: float = 2.0**24,
        hysteresis: int = 1,
        max_consecutive_skips: int = 50,
    ) -> None:
        super().__init__(init_scale, max_consecutive_skips)
        if not (math.isfinite(growth_factor) and growth_factor > 1):
            raise BadValueError(
                f"growth_factor must be > 1, got {growth_factor}; the loss scale could never"
                " grow. Use backoff_factor to shrink it."
            )
        if not 0 < backoff_factor < 1:
            raise BadValueError(
                f"backoff_factor must be between 0 and 1, got {backoff_factor}; a skip would not"
                " lower the loss scale."
            )
        checked_scale("min_scale", min_scale)
        checked_scale("max_scale", max_scale)
        if not min_scale <= init_scale <= max_scale:
            raise BadValueError(
                f"init_scale must be inside [min_scale, max_scale], got {init_scale:g} outside"
                f" [{min_scale:g}, {max_scale:g}]."
            )
        if hysteresis < 1:
            raise BadValueError(f"hysteresis must be at least 1 (= no delay), got {hysteresis}.")
        self.growth_factor = float(growth_factor)
        self.backoff_factor = float(backoff_factor)
        self.min_scale = float(min_scale)
        self.max_scale = float(max_scale)
        self.hysteresis = hysteresis
        self._growth_tracker = torch.zeros((), dtype=torch.int32)
        self._skips_since_growth = torch.zeros((), dtype=torch.float32)
        self.growth_interval = growth_interval

    @property
    def growth_interval(self) -> int:
        """Good windows in a row before the scale grows; may be changed at any time."""
        return self._growth_interval

    @growth_interval.setter
    def growth_interval(self, interval: int) -> None:
        if interval < 1:
            raise BadValueError(f"growth_interval must be at least 1, got {interval}.")
        self._growth_interval = interval
        # torch's kernel tests for equality: a tracker beyond a lowered interval never grows again
        self._growth_tracker.clamp_(max=interval - 1)

    def adjust(self, found_inf: Tensor) -> None:
        """One step of the pseudo-code above, without a host sync."""
        if self.hysteresis == 1:
            torch._amp_update_scale_(
                self._scale,
                self._growth_tracker,
                found_inf,
                self.growth_factor,
                self.backoff_factor,
                self.growth_interval,
            )
        else:
            self._adjust_with_hysteresis(found_inf)
        self._scale.clamp_(self.min_scale, self.max_scale)

    def _adjust_with_hysteresis(self, found_inf: Tensor) -> None:
        bad = found_inf > 0
        good = torch.where(bad, 0, self._growth_tracker + 1)
        grows = good >= self.growth_interval
        skips = torch.where(grows, 0.0, self._skips_since_growth + found_inf)
        backs_off = bad & (skips >= self.hysteresis)
        factor = torch.where(grows, self.growth_factor, 1.0)
        self._scale.mul_(torch.where(backs_off, self.backoff_factor, factor))
        self._growth_tracker.copy_(good.masked_fill(grows, 0))
        self._skips_since_growth.copy_(skips)

    def to(self, device: torch.device) -> None:
        """Move scale and counters to `device`; nothing happens if they are there."""
        if self._scale.device != device:
            super().to(device)
            self._growth_tracker = self._growth_tracker.to(device)
            self._skips_since_growth = self._skips_since_growth.to(device)

    def device_state(self) -> list[Tensor]:
        """Scale and counters."""
        return [self._scale, self._growth_tracker, self._skips_since_growth]

    _SETTINGS = (
        "growth_factor",
        "backoff_factor",
        "growth_interval",
        "min_scale",
        "max_scale",
        "hysteresis",
        "max_consecutive_skips",
    )

    def state_dict(self) -> dict[str, Any]:
        """Scale, counters and settings, under torch's names where torch has them.

        ``torch.amp.GradScaler().load_state_dict`` takes it too.

        Syncs: yes, scale and counters are read.
        """
        return {
            **super().state_dict(),
            "_growth_tracker": int(self._growth_tracker),
            "skips_since_growth": int(self._skips_since_growth),
            **{name: getattr(self, name) for name in self._SETTINGS},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of this class or of `torch.amp.GradScaler`.

        Settings that the state lacks (torch's has no bounds) keep their present value; a scale
        outside the bounds is brought inside, with one log line.

        Raises:
            BadValueError: The state has no usable scale (a disabled GradScaler's is empty).
        """
        settings = {name: state[name] for name in self._SETTINGS if name in state}
        checked = DynamicLossScale(
            **{
                **{name: getattr(self, name) for name in self._SETTINGS},
                "init_scale": settings.get("min_scale", self.min_scale),
                **settings,
            }
        )
        super().load_state_dict(state)
        for name in settings:
            setattr(self, name, getattr(checked, name))
        self._growth_tracker.fill_(int(state.get("_growth_tracker", 0)))
        self.growth_interval = checked.growth_interval
        self._skips_since_growth.fill_(float(state.get("skips_since_growth", 0)))
        if not self.min_scale <= state["scale"] <= self.max_scale:
            logger.warning(
                "loaded loss scale %g is outside [%g, %g] and was brought inside",
                state["scale"],
                self.min_scale,
                self.max_scale,
            )
            self._scale.clamp_(self.min_scale, self.max_scale)


def as_loss_scale(spec: LossScale | float | str | None, format_name: str) -> LossScale:
    """The loss scale that a setting asks for.

    Args:
        spec: ``"auto"`` (dynamic for fp16, none otherwise), a number (static), ``None``, or an
            object, which is used as it is.
        format_name: Format of the run.

    Raises:
        BadValueError: The number is not positive and finite, or the word is unknown.
        BadTypeError: Something else.
    """
    if isinstance(spec, LossScale):
        return spec
    if spec is None or (spec == "auto" and format_name != "fp16"):
        return NoLossScale()
    if spec == "auto":
        return DynamicLossScale()
    if isinstance(spec, str):
        raise BadValueError(
            f"loss_scale must be 'auto', None, a number or a loss scale object, got {spec!r}."
        )
    if isinstance(spec, (int, float)) and not isinstance(spec, bool):
        return StaticLossScale(spec)
    raise BadTypeError(
        "loss_scale must be 'auto', None, a number or a loss scale object, got"
        f" {type(spec).__name__}; a torch GradScaler's state loads into hs.DynamicLossScale()."
    )


def promote(loss: Tensor) -> Tensor:
    """The loss in FP32, or in float64 if it is that already."""
    return loss if loss.dtype in (torch.float32, torch.float64) else loss.float()


def checked_scale(name: str, value: float) -> float:
    """`value` if a float32 scale can hold it, else `BadValueError`."""
    if not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
        raise BadValueError(f"{name} must be positive and finite, got {value}.")
    if not 2.0**-126 <= value <= 2.0**127:
        raise BadValueError(f"{name} must be inside float32's normal range, got {value:g}.")
    return float(value)
