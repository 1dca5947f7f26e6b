"""The state of a `torch.amp.GradScaler`, kept by a `DynamicLossScale`."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor

from halfstep.records import CallOrderError
from halfstep.update.loss_scale.base import checked_scale
from halfstep.update.loss_scale.dynamic import DynamicLossScale

_UNLIMITED = 2**31


class ScalerState(torch.amp.GradScaler):
    """torch's class with its numbers in a bounded dynamic scale; see `GradScaler`.

    Args:
        device: "cuda", "cpu", or ``None`` to choose.
        scale: Holds scale, counters, settings and bounds.
        enabled: As in torch.
    """

    def __init__(self, device: str | None, scale: DynamicLossScale, enabled: bool) -> None:
        self._dynamic = scale
        self._is_placed = False
        super().__init__(
            device or ("cuda" if torch.cuda.is_available() else "cpu"),
            float(scale.value),
            scale.growth_factor,
            scale.backoff_factor,
            scale.growth_interval,
            enabled,
        )

    @property
    def min_scale(self) -> float:
        """Floor of the scale."""
        return self._dynamic.min_scale

    @property
    def max_scale(self) -> float:
        """Ceiling of the scale."""
        return self._dynamic.max_scale

    # torch's methods read and write these; the numbers live in the dynamic scale.
    @property
    def _scale(self) -> Tensor | None:
        return self._dynamic.value if self._is_placed else None

    @_scale.setter
    def _scale(self, value: Tensor | None) -> None:
        assert value is None, "torch's __init__ alone sets it"

    @property
    def _growth_tracker(self) -> Tensor | None:
        return self._dynamic._growth_tracker if self._is_placed else None

    @_growth_tracker.setter
    def _growth_tracker(self, value: Tensor | None) -> None:
        assert value is None, "torch's __init__ alone sets it"

    def _lazy_init_scale_growth_tracker(self, dev: torch.device) -> None:
        self._dynamic.to(dev)
        self._is_placed = True

    def __getstate__(self) -> dict[str, Any]:
        dynamic = copy.deepcopy(self._dynamic)
        dynamic.to(torch.device("cpu"))
        # as torch's: the copy goes to the device of the first loss that it scales
        return {**self.__dict__, "_dynamic": dynamic, "_is_placed": False}

    def get_scale(self) -> float:
        """The current scale; 1 if disabled.

        Syncs: yes.
        """
        return float(self._dynamic.value) if self._enabled else 1.0

    def get_growth_factor(self) -> float:
        """As in torch."""
        return self._dynamic.growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """As in torch.

        Args:
            new_factor: > 1.
        """
        self._dynamic.growth_factor = new_factor

    def get_backoff_factor(self) -> float:
        """As in torch."""
        return self._dynamic.backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """As in torch.

        Args:
            new_factor: Between 0 and 1.
        """
        self._dynamic.backoff_factor = new_factor

    def get_growth_interval(self) -> int:
        """As in torch."""
        return self._dynamic.growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """As in torch, but an interval below the present count grows at the next good window.

        Args:
            new_interval: At least 1.
        """
        self._dynamic.growth_interval = new_interval

    def state_dict(self) -> dict[str, Any]:
        """Scale, counters, settings and bounds; loads into torch's class too. Empty if disabled.

        Syncs: yes.
        """
        return self._dynamic.state_dict() if self._enabled else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state of this class or of torch's; its scale widens the bounds if it must.

        Args:
            state_dict: What `state_dict` of either class returned.

        Raises:
            CallOrderError: The state is empty: it was saved by a disabled scaler.
            BadValueError: The scale is not positive and finite.
        """
        if not self._enabled:
            return
        if not state_dict:
            raise CallOrderError(
                "the state is empty, probably saved by a disabled GradScaler; start without it."
            )
        scale = checked_scale("scale", state_dict.get("scale", math.nan))
        self._widen(scale)
        bounds = {"min_scale": self.min_scale, "max_scale": self.max_scale}
        self._dynamic.load_state_dict({**bounds, **state_dict})

    def _set_scale(self, scale: float) -> None:
        self._widen(checked_scale("new_scale", scale))
        self._dynamic.value.fill_(scale)

    def _widen(self, scale: float) -> None:
        self._dynamic.min_scale = min(self._dynamic.min_scale, scale)
        self._dynamic.max_scale = max(self._dynamic.max_scale, scale)
