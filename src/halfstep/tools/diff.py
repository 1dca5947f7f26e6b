"""``halfstep diff``: two recorded runs, and the first step at which they part."""

from __future__ import annotations

from dataclasses import dataclass

from halfstep.records import RunRecord
from halfstep.records.comparison import Comparison, compare_steps


@dataclass(frozen=True)
class RunDifference:
    """Two runs compared, and on request the noise between seeds.

    Attributes:
        comparison: First against second run.
        noise: Mean loss difference between the first and a run of another seed; ``None`` without.
    """

    comparison: Comparison
    noise: float | None

    @property
    def matters(self) -> bool:
        """Whether the runs differ, by more than the noise where it is known."""
        if self.noise is None:
            return not self.comparison.is_equal
        return self.comparison.mean_loss_difference > self.noise

    def __str__(self) -> str:
        text = str(self.comparison)
        if self.noise is None:
            return text
        mean = self.comparison.mean_loss_difference
        verdict = "more than" if self.matters else "no more than"
        return (
            f"{text}\nmean loss difference {mean:.3g}: {verdict} the noise between seeds"
            f" ({self.noise:.3g})"
        )


def diff_runs(left: RunRecord, right: RunRecord, noise: RunRecord | None = None) -> RunDifference:
    """Compare two recorded runs.

    Args:
        left: One run.
        right: The other.
        noise: A run like `left` with another seed, as a measure for what does not matter.
    """
    between_seeds = None
    if noise is not None:
        between_seeds = compare_steps(left.steps, noise.steps).mean_loss_difference
    return RunDifference(compare_steps(left.steps, right.steps), between_seeds)
