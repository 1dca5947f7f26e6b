"""`Counters`: what a run, or one of its optimizers, has done so far."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor


@dataclass
class Counters:
    """Steps, updates and consumed tokens.

    Attributes:
        attempts: Steps, skipped ones included.
        num_updates: Steps that moved parameters.
        consumed: Sum of divisors over those.
    """

    attempts: int = 0
    num_updates: int = 0
    consumed: float = 0.0

    @property
    def num_skipped(self) -> int:
        """Steps that moved nothing."""
        return self.attempts - self.num_updates

    def count(self, updated: bool, divisor: float) -> float:
        """Count one step.

        Args:
            updated: Whether it moved parameters.
            divisor: Of its window; 0 for mean losses.

        Returns:
            The consumed total after it.
        """
        self.attempts += 1
        if updated:
            self.num_updates += 1
            self.consumed += divisor
        return self.consumed


def power_of_two_near(divisor: float | Tensor) -> float:
    """The power of two near a window's first divisor; 0 if it says nothing (0, inf, NaN).

    A loss summed over 4,096 tokens at S = 2^16 overflows in FP16 where its mean would not, so
    backward divides by this number and the update corrects exactly.

    Syncs: for a device tensor; once per run.
    """
    first = float(divisor)
    return 2.0 ** round(math.log2(first)) if 0 < first < math.inf else 0.0
