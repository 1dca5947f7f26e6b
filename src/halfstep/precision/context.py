"""The contexts of a policy: forward under autocast, and backward that recomputes."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, NamedTuple

import torch

from halfstep.precision.compiler import not_compiled
from halfstep.precision.dispatch import Frame, active_frame, set_active_frame
from halfstep.precision.rules import casts


class _Before(NamedTuple):
    """What a thread had before it entered, to be put back."""

    enabled: bool
    dtype: torch.dtype
    frame: Frame | None
    kept_casts: dict[Any, Any] | None


class _Entered(threading.local):
    def __init__(self) -> None:
        self.stack: list[_Before] = []


_entered = _Entered()


class PolicyContext(contextlib.ContextDecorator):
    """autocast with the rules of a policy; enter it any number of times, from any thread.

    It does what `torch.autocast` does (whose object cannot be entered twice) and sets the frame.

    Args:
        device_type: Whose autocast.
        dtype: The low-precision format; ``None`` switches autocast off.
        frame: The rules for this device and the islands.
        recomputes: For backward: autocast is off, the rules wait for a checkpoint that recomputes
            its forward.
    """

    def __init__(
        self,
        device_type: str,
        dtype: torch.dtype | None,
        frame: Frame | None,
        recomputes: bool = False,
    ) -> None:
        self._device_type = device_type
        self._dtype = dtype
        self._frame = frame
        self._recomputes = recomputes

    def changes_nothing(self) -> bool:
        """Whether this is a context for backward that may be left out: no autocast, no rules."""
        return (
            self._recomputes
            and self._frame is None
            and active_frame() is None
            and not torch.is_autocast_enabled(self._device_type)
        )

    def __enter__(self) -> None:
        device = self._device_type
        dtype = torch.get_autocast_dtype(device)
        outer = active_frame()
        _entered.stack.append(_Before(torch.is_autocast_enabled(device), dtype, outer, casts.kept))
        torch.autocast_increment_nesting()
        torch.set_autocast_enabled(device, self._dtype is not None and not self._recomputes)
        torch.set_autocast_dtype(device, self._dtype or dtype)
        if outer is not self._frame:
            set_active_frame(self._frame if outer is None else _inside(outer, self._frame, device))
        casts.kept = None if self._recomputes else {} if casts.kept is None else casts.kept

    def __exit__(self, *exception: object) -> None:
        device = self._device_type
        before = _entered.stack.pop()
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        torch.set_autocast_enabled(device, before.enabled)
        torch.set_autocast_dtype(device, before.dtype)
        set_active_frame(before.frame)
        casts.kept = before.kept_casts


def _inside(outer: Frame, frame: Frame | None, device_type: str) -> Frame:
    """`frame` for its own device, and what was active for the others."""
    others = {device: rules for device, rules in outer.rules.items() if device != device_type}
    if frame is None:
        return Frame(others, ())
    return Frame({**others, **frame.rules}, frame.islands)


not_compiled(PolicyContext.__enter__, PolicyContext.__exit__)
