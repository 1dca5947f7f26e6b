"""How far a format is from FP32 on one batch, and over a short training run."""

from __future__ import annotations

from dataclasses import dataclass

from halfstep.records.plain import PlainRecord


@dataclass(frozen=True, slots=True)
class GradientError(PlainRecord):
    """One parameter's gradient against FP32.

    Attributes:
        name: Of the parameter.
        cosine: Of the angle between both gradients; NaN where one is 0 or not finite.
        relative_error: ``||low - fp32|| / ||fp32||``.
        share: Of the FP32 gradient's squared norm over all parameters: how much it counts.
    """

    name: str
    cosine: float
    relative_error: float
    share: float


@dataclass(frozen=True, slots=True)
class PassError(PlainRecord):
    """One pass against the FP32 pass on the same batch.

    Attributes:
        name: Of the pass, as ``"bf16"``, ``"fp16"``, ``"fp16 scaled"``.
        output_error: Relative error of the model's result (the logits); NaN if it is no tensor.
        loss_error: Relative error of the loss.
        cosine: Of all gradients as one vector.
        relative_error: Of all gradients as one vector.
        gradients: Per parameter.
    """

    name: str
    output_error: float
    loss_error: float
    cosine: float
    relative_error: float
    gradients: tuple[GradientError, ...]


@dataclass(frozen=True, slots=True)
class TrainingCurve(PlainRecord):
    """The losses of a short run.

    Attributes:
        name: ``"fp32"``, ``"fp32, other seed"``, ``"bf16"``, ``"fp16"``.
        losses: Per attempted update.
        num_skipped: Updates that were skipped.
        status: How the run ended, as in `RunRecord`.
    """

    name: str
    losses: tuple[float, ...]
    num_skipped: int
    status: str


@dataclass(frozen=True, slots=True)
class Equality(PlainRecord):
    """No NaN is not yet equal: passes against FP32, then runs against FP32.

    Attributes:
        passes: BF16, FP16, FP16 scaled.
        curves: Runs of the same data; empty without ``steps``.
        tolerance: Mean ``|loss - loss|`` over the second half of two FP32 runs of different seeds;
            NaN without runs.
        differences: Name of a curve to the same between it and FP32 of the same seed.
    """

    passes: tuple[PassError, ...]
    curves: tuple[TrainingCurve, ...]
    tolerance: float
    differences: dict[str, float]

    def is_equal(self, name: str) -> bool:
        """Whether a run ended within the tolerance of FP32.

        Args:
            name: Of a curve.
        """
        return self.differences[name] <= self.tolerance
