"""The loss scale that searches for the largest value without overflow."""

from __future__ import annotations

import logging
import math
from typing import Any

import torch
from torch import Tensor

from halfstep.records import BadValueError
from halfstep.records.keywords import explains_keywords
from halfstep.update.loss_scale.base import (
    LossScale,
    checked_count,
    checked_scale,
    moved,
)

logger = logging.getLogger("halfstep")

# of apex, DeepSpeed, fairseq and Megatron-LM
OTHER_NAMES = {
    name: f"the setting is called {ours}"
    for ours, theirs in {
        "init_scale": "loss_scale scale initial_scale initial_loss_scale",
        "growth_factor": "scale_factor",
        "growth_interval": "scale_window loss_scale_window growth_period",
        "min_scale": "min_loss_scale minimum_scale",
        "max_scale": "max_loss_scale maximum_scale",
    }.items()
    for name in theirs.split()
}


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

    @explains_keywords("DynamicLossScale", OTHER_NAMES)
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
        checked_count("hysteresis", hysteresis)
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
        self._growth_interval = checked_count("growth_interval", interval)
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
        # on a CPU looking costs less than the operation does
        if not (self._scale.is_cpu and self.min_scale <= float(self._scale) <= self.max_scale):
            self._scale.clamp_(self.min_scale, self.max_scale)

    def _adjust_with_hysteresis(self, found_inf: Tensor) -> None:
        bad = found_inf > 0
        tracker, skips = self._growth_tracker, self._skips_since_growth
        grows = tracker.add_(1).masked_fill_(bad, 0) >= self.growth_interval
        skips.add_(found_inf).masked_fill_(grows, 0.0)
        tracker.masked_fill_(grows, 0)
        factor = torch.ones_like(self._scale).masked_fill_(grows, self.growth_factor)
        backs_off = bad & (skips >= self.hysteresis)
        self._scale.mul_(factor.masked_fill_(backs_off, self.backoff_factor))

    def copies(self) -> dict[str, Tensor]:
        """Copies of the tensors that `adjust` may change, by name.

        Without hysteresis skips are not counted, and a kernel less is launched.
        """
        if self.hysteresis > 1 or type(self).adjust is not DynamicLossScale.adjust:
            return super().copies()
        return {
            "_scale": self._scale.clone(),
            "_growth_tracker": self._growth_tracker.clone(),
        }

    def to(self, device: torch.device) -> None:
        """Move scale and counters to `device`; nothing happens if they are there."""
        if self._scale.device != device:
            super().to(device)
            self._growth_tracker = moved(self._growth_tracker, device)
            self._skips_since_growth = moved(self._skips_since_growth, device)

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
        self._refuse_other_kinds(state)
        if "num_consecutive_skips" in state and "growth_factor" not in state:
            raise BadValueError(
                f"the state (keys {sorted(state)}) is not that of a dynamic loss scale, which this"
                " run uses; to go on in FP16 after a run without one, leave this state out and let"
                " the scale start afresh."
            )
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
