"""Loss scales: the common methods, none and static, and the count of skips in a row."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from halfstep.records import BadValueError, ScaleCollapse
from halfstep.records.keywords import explains_keywords
from halfstep.update.readback import Number, as_flag


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
        checked_count("max_consecutive_skips", max_consecutive_skips)
        self.max_consecutive_skips = max_consecutive_skips
        self._skips = SkipsInARow()
        self._scale = torch.tensor(checked_scale("init_scale", init_scale), dtype=torch.float32)
        self._known: tuple[Tensor, int, float] | None = None

    @property
    def num_consecutive_skips(self) -> int:
        """Skips since the last window that was not one."""
        return self._skips.count

    @property
    def value(self) -> Tensor:
        """The current scale, a 0-d float32 tensor on the device of the loss (read-only)."""
        return self._scale

    @property
    def known_value(self) -> float | None:
        """The value as a float if the host knows it: on the CPU, and of a constant scale.

        Syncs: no.
        """
        scale = self.value
        if scale.is_cpu:
            return float(scale)
        if self._known is None or not self.is_constant:
            return None
        tensor, version, value = self._known
        return value if tensor is scale and version == scale._version else None

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
        scale = self._scale.clone()
        self.note_window(found_inf)
        if found_inf.device.type == "cpu":
            self.observe(bool(found_inf), float(scale))

    def note_window(
        self,
        found_inf: Number,
        counts: Number = 1.0,
        *,
        before: Mapping[str, Tensor] | None = None,
    ) -> None:
        """The device half of `update`; the skip counter is left to `observe`.

        Whoever tells a scale about a window calls this method; a subclass overrides `adjust`.

        Args:
            found_inf: 1 if a gradient of the window was not finite, else 0; a number or a 0-d
                tensor.
            counts: 0 if the window says nothing about the scale (an empty one); a number, or a
                0-d tensor where only the device knows. The scale then stays as it is, with every
                tensor that the object holds.
            before: What `copies` returns now, where the caller has it already.

        Syncs: no.
        """
        if self.is_constant or not (isinstance(counts, Tensor) or counts):
            return
        flag = as_flag(found_inf, self._scale.device)
        if not isinstance(counts, Tensor):
            self.adjust(flag)
            return
        before = self.copies() if before is None else before
        self.adjust(flag)
        counts = counts if counts.dtype is torch.bool else counts != 0
        for name, now in self._tensors().items():
            if name in before:
                _keep_where(counts.to(now.device), now, before[name])

    def copies(self) -> dict[str, Tensor]:
        """Copies of the tensors that `adjust` may change, by name; none of a constant scale."""
        if self.is_constant:
            return {}
        return {name: value.clone() for name, value in self._tensors().items()}

    def put_back(self, copies: Mapping[str, Tensor]) -> None:
        """Take `note_window` back.

        Args:
            copies: From before it.
        """
        vars(self).update(copies)

    def adjust(self, found_inf: Tensor) -> None:
        """The rule: change the scale after a window that counts. The base class keeps it.

        A subclass may change or replace any tensor attribute; `note_window` puts all of them back
        where the window turns out not to count.

        Args:
            found_inf: 0-d float32 on the device of the scale, exactly 0.0 or 1.0.
        """

    @property
    def is_constant(self) -> bool:
        """Whether no window ever changes the scale."""
        return type(self).adjust is LossScale.adjust

    def _tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def observe(self, skipped: bool, scale: float) -> None:
        """Tell the host-side counters how a window ended.

        Args:
            skipped: Whether the gradients were not finite.
            scale: The scale that the window used.

        Raises:
            ScaleCollapse: `max_consecutive_skips` skips in a row.
        """
        self._skips.observe(skipped, scale, self.max_consecutive_skips)

    def to(self, device: torch.device) -> None:
        """Move the scale to `device`; nothing happens if it is there."""
        if self._scale.device != device:
            value = float(self._scale) if self._scale.is_cpu else None
            self._scale = moved(self._scale, device)
            if value is not None:
                self._known = self._scale, self._scale._version, value

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on: the kind of scale, ``scale`` and the skip counter.

        Syncs: yes, the scale is read.
        """
        return {
            "kind": type(self).__name__,
            "scale": float(self._scale),
            "num_consecutive_skips": self.num_consecutive_skips,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` of the same class returned.

        Raises:
            BadValueError: The state is of another kind of loss scale, a field is missing, or the
                scale is not positive and finite.
        """
        self._refuse_other_kinds(state)
        if "scale" not in state:
            raise BadValueError(
                f"expected the state of a {type(self).__name__} with a 'scale', got the keys"
                f" {sorted(state)}; a disabled torch GradScaler saves an empty state."
            )
        value = checked_scale("scale", state["scale"])
        self._scale.fill_(value)
        value = float(torch.tensor(value, dtype=torch.float32))
        self._known = self._scale, self._scale._version, value
        self._skips.restart(int(state.get("num_consecutive_skips", 0)))

    def _refuse_other_kinds(self, state: Mapping[str, Any]) -> None:
        """States written before they carried a kind, and torch's, are told by their keys."""
        kind = state.get("kind", type(self).__name__)
        if kind != type(self).__name__:
            raise BadValueError(
                f"the state is of a {kind}, this run uses a {type(self).__name__}; build it with"
                " the loss_scale of the run that wrote it, or leave this state out and let the"
                " scale start afresh."
            )

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

    @explains_keywords(
        "StaticLossScale",
        dict.fromkeys(("init_scale", "loss_scale", "value"), "the setting is called scale"),
    )
    def __init__(self, scale: float, max_consecutive_skips: int = 50) -> None:
        super().__init__(checked_scale("scale", scale), max_consecutive_skips)


class SkipsInARow:
    """Counts skipped windows until one commits: a run that only skips looks alive and is not.

    Attributes:
        count: Skips since the last window that was not one.
    """

    def __init__(self) -> None:
        self.count = 0
        self._scales: deque[float] = deque(maxlen=64)

    def observe(self, skipped: bool, scale: float, limit: int) -> None:
        """Take note of a window.

        Args:
            skipped: Whether its gradients were not finite.
            scale: The loss scale that it used.
            limit: How many skips in a row are too many.

        Raises:
            ScaleCollapse: This was the `limit`-th.
        """
        if not skipped:
            self.restart(0)
            return
        self.count += 1
        self._scales.append(scale)
        if self.count >= limit:
            raise ScaleCollapse(self.count, list(self._scales))

    def restart(self, count: int) -> None:
        """Go on from a count, without a history."""
        self.count = count
        self._scales.clear()


def moved(value: Tensor, device: torch.device) -> Tensor:
    """A 0-d tensor on `device`; a fill from the host, because a copy would make the host wait."""
    if value.is_cpu and device.type != "cpu":
        return torch.full((), value.item(), dtype=value.dtype, device=device)
    return value.to(device)


def _keep_where(counts: Tensor, now: Tensor, before: Tensor) -> None:
    """Write back what a tensor was, unless the window counts."""
    if (now.shape, now.dtype, now.device) == (before.shape, before.dtype, before.device):
        torch.where(counts, now, before, out=now)
    else:
        now.copy_(torch.where(counts, now, before))


def promote(loss: Tensor) -> Tensor:
    """The loss in FP32, or in float64 if it is that already."""
    return loss if loss.dtype in (torch.float32, torch.float64) else loss.float()


def checked_scale(name: str, value: float) -> float:
    """`value` if a float32 scale can hold it, else `BadValueError`."""
    if not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
        raise BadValueError(f"{name} must be positive and finite, got {value!r}.")
    if not 2.0**-126 <= value <= 2.0**127:
        raise BadValueError(f"{name} must be inside float32's normal range, got {value:g}.")
    return float(value)


def checked_count(name: str, value: object) -> int:
    """`value` if it is a whole number of at least 1, else `BadValueError`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadValueError(f"{name} must be a whole number of at least 1, got {value!r}.")
    return value
