"""`Diagnosis`: what the doctor found out about a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from halfstep.records.equality import Equality
from halfstep.records.gradient_range import GradientRange, LostUpdates
from halfstep.records.plain import PlainRecord
from halfstep.records.trace import LayerRecord, OpRecord


@dataclass(frozen=True, slots=True)
class DiagnosisCost(PlainRecord):
    """What a diagnosis cost, and what it left out to keep within its bound.

    Attributes:
        seconds: It took.
        step_seconds: One plain forward and backward in FP32 took.
        max_seconds: The bound.
        notes_bytes: Memory of what the tracer kept for comparison, at its most.
        left_out: What was not looked at for want of time.
    """

    seconds: float
    step_seconds: float
    max_seconds: float
    notes_bytes: int
    left_out: tuple[str, ...]


Health = Literal["healthy", "precision", "not_precision"]

# In the order in which one explains the next: a NaN in the batch explains every later op.
CAUSE_KINDS = (
    "cannot_run",
    "bad_batch",
    "bad_weights",
    "poisoned_buffer",
    "invalid_operation",
    "overflow",
    "underflow",
    "rounding",
    "silent_difference",
    "loss_too_large",
    "gradient_underflow",
    "low_precision_weights",
    "half_loss",
    "lost_updates",
    "state_stops",
    "state_drifts",
    "training_differs",
    "scale_searching",
)


@dataclass(frozen=True, slots=True)
class PathStep(PlainRecord):
    """One module on the way of a fault from its source to the loss.

    Attributes:
        module: Its path; empty for the loss function.
        op: The first op there that hands the fault on.
        relative_error: Of that op's result against FP32; inf where it is not finite, NaN where
            FP32 has no such result.
    """

    module: str
    op: str
    relative_error: float


@dataclass(frozen=True, slots=True)
class Cause(PlainRecord):
    """One thing that is wrong, with its place, its evidence and its remedy.

    Attributes:
        kind: One of `CAUSE_KINDS`.
        passes: Names of the passes that show it, as ``"fp32"``, ``"bf16"``, ``"fp16"``,
            ``"fp16 scaled"``.
        mechanism: How: ``"overflow"``, ``"underflow"``, ``"rounding"``, ``"invalid"`` (no finite
            result exists), ``"input"`` (it came in), ``"dtype"`` (an op refuses the format) or
            ``"consequence"`` (of another cause).
        is_precision: Whether FP32 is free of it. What FP32 has too no format can cure.
        severity: ``"error"``: the result is wrong or the run stops. ``"note"``: it passes by
            itself or is to be known (a loss scale that is still searching).
        module: Path of the module, as ``Net.blocks.0.fc``; empty for the loss function.
        op: The op that produced it, not one that handed it on; ``None`` for weights and the like.
        subject: Name of the weight, buffer, parameter or part of the batch; else empty.
        fp32_largest: Largest magnitude of the same result in FP32; NaN without one.
        missing_bits: Powers of two by which that exceeds the format's largest value; NaN if not.
        evidence: Numbers that show it, in one sentence.
        explanation: What happens, in one or two sentences.
        remedy: What to do.
        islands: Module patterns, as ``precision.toml`` takes them, that were tried on this batch
            as FP32 islands, all together, and left it healthy; empty where none were.
        path: From `op` to the loss (or a gradient), module by module.
        shown_by: Where `op` rounds digits away, the op whose result is visibly wrong for it.
    """

    kind: str
    mechanism: str
    passes: tuple[str, ...]
    is_precision: bool
    severity: str
    module: str
    op: OpRecord | None
    subject: str
    fp32_largest: float
    missing_bits: float
    evidence: str
    explanation: str
    remedy: str
    islands: tuple[str, ...] = ()
    shown_by: OpRecord | None = None
    path: tuple[PathStep, ...] = ()

    @property
    def place(self) -> str:
        """The op in words, or the named thing."""
        return self.op.place if self.op is not None else self.subject


@dataclass(frozen=True, slots=True)
class PassRecord(PlainRecord):
    """One of the four runs of the batch.

    Attributes:
        name: ``"fp32"``, ``"bf16"``, ``"fp16"`` or ``"fp16 scaled"``.
        format: ``"fp32"``, ``"bf16"``, ``"fp16"``.
        loss_scale: 1 without scaling.
        loss: Of the batch, over its divisor.
        grad_norm: True norm of all parameter gradients; inf or NaN where one is not finite.
        zero_gradient_fraction: Share of the parameters' gradient values that are 0.
        num_ops: Traced ops.
        first_bad: The op that produced the first inf or NaN that matters; ``None`` if the loss and
            all gradients are finite.
        layers: Every module, forward then backward.
    """

    name: str
    format: str
    loss_scale: float
    loss: float
    grad_norm: float
    zero_gradient_fraction: float
    num_ops: int
    first_bad: OpRecord | None
    layers: tuple[LayerRecord, ...]

    @property
    def is_finite(self) -> bool:
        """Whether loss and gradients are."""
        return self.loss - self.loss == 0 and self.grad_norm - self.grad_norm == 0


@dataclass(frozen=True, slots=True)
class Symptom(PlainRecord):
    """One of the named checks.

    Attributes:
        name: As for ``--symptom``.
        title: What a user sees, in a few words.
        found: Whether it is there; ``None`` where it could not be looked for here.
        evidence: Numbers, in one sentence.
        remedy: What to do; empty where nothing is.
    """

    name: str
    title: str
    found: bool | None
    evidence: str
    remedy: str


@dataclass(frozen=True, slots=True)
class DtypeRow(PlainRecord):
    """The dtype of one thing on its way through a step.

    Attributes:
        stage: ``"input"``, ``"weights"``, ``"layer"``, ``"loss"``, ``"activation gradient"``,
            ``"gradient"``, ``"optimizer state"`` or ``"update"``.
        name: Of the module, parameter or part of the batch.
        dtypes: Pass name to dtype, as ``{"fp32": "float32", "fp16": "float16"}``.
        shape: Its shape.
    """

    stage: str
    name: str
    dtypes: dict[str, str]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Diagnosis(PlainRecord):
    """What the doctor found out about a recipe on one batch.

    Attributes:
        recipe: Name of the recipe.
        device: Device type it ran on.
        torch: Version of torch.
        policy: Whose op lists ran: ``"cuda"`` or ``"device"`` (torch's own for `device`), and the
            exceptions of a policy of the user's.
        health: ``"healthy"`` (no cause of severity "error"), ``"precision"`` (FP32 is free of
            the first one) or ``"not_precision"`` (FP32 has it too).
        headline: The verdict in one sentence.
        causes: What is wrong, the one that explains the others first.
        passes: The four runs, FP32 first.
        gradient_range: Exponents of the FP32 gradients, and the scales that are safe.
        lost_updates: Per parameter, after one update by the recipe's optimizer on a copy.
        equality: Against FP32.
        symptoms: The named checks.
        dtypes: The dtype picture.
        cost: Time and memory; ``None`` in records of older versions.
    """

    recipe: str
    device: str
    torch: str
    policy: str
    health: Health
    headline: str
    causes: tuple[Cause, ...]
    passes: tuple[PassRecord, ...]
    gradient_range: GradientRange | None
    lost_updates: tuple[LostUpdates, ...]
    equality: Equality | None
    symptoms: tuple[Symptom, ...]
    dtypes: tuple[DtypeRow, ...]
    cost: DiagnosisCost | None = None

    @property
    def is_healthy(self) -> bool:
        """Whether no cause is an error."""
        return self.health == "healthy"

    def __str__(self) -> str:
        return self.headline
