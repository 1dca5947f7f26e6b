"""One update of a loss scale per window, however many optimizers share it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from halfstep.update.loss_scale.base import LossScale
from halfstep.update.readback import Number, any_of


@dataclass
class _Noted:
    """What closed windows have said about a scale that could not be told yet.

    Attributes:
        found_inf: 1 if a gradient was not finite.
        counts: 0 if no window said anything about the scale (empty, or held for another reason).
    """

    found_inf: Number
    counts: Number


SavedScales = tuple[
    dict[LossScale, _Noted], dict[LossScale, int], dict[LossScale, dict[str, Tensor]]
]


class UsesLossScale(Protocol):
    """Has a loss scale, which several may share."""

    loss_scale: LossScale


class ScaleUpdates:
    """Tells loss scales how their windows ended.

    A scale must not move while a window that was scaled by it is open. Where optimizers share a
    scale and close their windows one after the other, it is therefore updated once, when the last
    of them is closed: as torch's `GradScaler.update` after all its steps.
    """

    def __init__(self) -> None:
        self._waiting: dict[LossScale, _Noted] = {}
        self._times_told: dict[LossScale, int] = {}

    def note(self, scale: LossScale, found_inf: Number, counts: Number) -> None:
        """Remember how a window ended.

        Args:
            scale: What its losses were multiplied by.
            found_inf: 1 if a gradient was not finite, else 0; a 0-d tensor where the device knows.
            counts: 0 if the window says nothing about the scale; likewise.
        """
        earlier = self._waiting.get(scale)
        if earlier is not None:
            found_inf = any_of([earlier.found_inf, found_inf])
            counts = any_of([earlier.counts, counts])
        self._waiting[scale] = _Noted(found_inf, counts)

    def tell(self, still_open: Collection[LossScale], saved: SavedScales | None = None) -> None:
        """Update every scale that was noted and that no open window uses.

        Args:
            still_open: Scales of open windows.
            saved: From `saved`, where no scale has moved since.

        Syncs: no.
        """
        copies = {} if saved is None else saved[2]
        for scale in [scale for scale in self._waiting if scale not in still_open]:
            noted = self._waiting.pop(scale)
            scale.note_window(noted.found_inf, noted.counts, before=copies.get(scale))
            self._times_told[scale] = self.times_told(scale) + 1

    def saved(self, users: Iterable[UsesLossScale]) -> SavedScales:
        """What `put_back` needs: the scales as they are, and what waits to be told.

        Args:
            users: Of all scales that may be noted or told.
        """
        scales = {user.loss_scale for user in users}
        copies = {scale: scale.copies() for scale in scales if not scale.is_constant}
        return dict(self._waiting), dict(self._times_told), copies

    def put_back(self, saved: SavedScales) -> None:
        """Take back what was noted and told since.

        Args:
            saved: From `saved`.
        """
        waiting, times_told, copies = saved
        self._waiting, self._times_told = dict(waiting), dict(times_told)
        for scale, tensors in copies.items():
            scale.put_back(tensors)

    def times_told(self, scale: LossScale) -> int:
        """How often a scale was updated: skips between two updates are one try of one scale."""
        return self._times_told.get(scale, 0)
