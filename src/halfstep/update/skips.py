"""`SkipsInARow`: when to stop a run that skips every update."""

from __future__ import annotations

from collections import deque

from halfstep.records import ScaleCollapse


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
