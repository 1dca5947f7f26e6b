"""All that a diagnosis knows while it is made: model, batch, passes, and how long it may take."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from halfstep.records import PassError
from halfstep.tools.doctor.runs.one_batch import OneBatch
from halfstep.tools.doctor.runs.pass_errors import pass_error
from halfstep.tools.doctor.runs.passes import Pass
from halfstep.tools.doctor.runs.results import (
    noise_of_fp32,
    results_of,
    wrong_results,
)
from halfstep.tracing.against import Against


@dataclass
class Examination:
    """What the causes are drawn from.

    Attributes:
        subject: Model and batch.
        passes: Finished passes by name.
        beside: Each 16-bit pass beside FP32.
        errors: The same as numbers.
        deadline: Of `time.monotonic`: from then on no further run is begun.
        fp16_is_explained: Whether the loss scale alone explains what FP16 does.
        left_out: What was not looked at for want of time.
    """

    subject: OneBatch
    passes: dict[str, Pass]
    beside: dict[str, Against] = field(default_factory=dict)
    errors: dict[str, PassError] = field(default_factory=dict)
    deadline: float = float("inf")
    fp16_is_explained: bool = False
    left_out: list[str] = field(default_factory=list)
    _noise: dict[str, float] | None = field(default=None, repr=False)

    def has_time(self, for_what: str) -> bool:
        """Whether another run may begin; notes what is left out.

        Args:
            for_what: In words, for the user.
        """
        if time.monotonic() < self.deadline:
            return True
        if for_what not in self.left_out:
            self.left_out.append(for_what)
        return False

    def keep(self, low: Pass) -> None:
        """Note a 16-bit pass, beside FP32 where that is finite.

        Args:
            low: The pass.
        """
        fp32 = self.passes["fp32"]
        self.passes[low.name] = low
        if fp32.is_finite:
            self.beside[low.name] = Against(
                low.lineage, low.ops, fp32.lineage, fp32.ops, low.loss_scale
            )
            self.errors[low.name] = pass_error(low, fp32)

    def noise(self) -> Mapping[str, float]:
        """How uncertain the results are in FP32 itself; one run, the first time."""
        if self._noise is None:
            fp32 = self.passes["fp32"]
            self._noise = noise_of_fp32(self.subject, fp32.policy, results_of(fp32))
        return self._noise

    def wrong(self, low: Pass) -> dict[str, float]:
        """Results of a pass that are further from FP32 than rounding explains.

        Args:
            low: The pass.
        """
        fp32 = self.passes["fp32"]
        return wrong_results(results_of(low), results_of(fp32), low.policy.row, self.noise)
