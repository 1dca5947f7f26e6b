"""What a trace of one forward and backward pass knows about each op and each module."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from halfstep.records.plain import PlainRecord


@dataclass(frozen=True, slots=True)
class RangeRecord(PlainRecord):
    """How the magnitudes of a tensor lie in a format.

    Attributes:
        format: ``"fp16"``, ``"bf16"``, ...: the format that is asked about.
        zero_fraction: Share of values that are exactly 0.
        subnormal_fraction: Share that loses bits there: below the smallest normal, not 0.
        underflow_fraction: Share that is not 0 and would become 0.
        overflow_fraction: Share of finite values beyond the largest finite one.
        histogram: Exponent e to the number of finite values with ``2^e <= |value| < 2^(e+1)``.
    """

    format: str
    zero_fraction: float
    subnormal_fraction: float
    underflow_fraction: float
    overflow_fraction: float
    histogram: dict[int, int]


@dataclass(frozen=True, slots=True)
class OpRecord(PlainRecord):
    """One op of a pass.

    Attributes:
        index: Position in the pass, from 0, backward ops after forward ones.
        op: Name as ``aten.mul``.
        phase: ``"forward"`` or ``"backward"``.
        module: Path of the innermost module, with the model's class name first, as
            ``Net.blocks.0.fc``; of a backward op that of the forward op whose gradient it
            computes. Empty outside of any module (the loss function).
        output: Which of the op's results, from 0; every floating-point one has a record.
        occurrence: How many ops of this name ran before in this module and phase.
        source: ``file.py:line`` in the user's code that called it; for a backward op the line of
            the forward op. Empty where nobody knows.
        gradient_of: For a backward op the autograd node, as ``MulBackward0``; else empty.
        inputs: Dtypes of its floating-point inputs, as ``float16``.
        dtype: Dtype of its result, as ``float16``.
        shape: Shape of its result.
        largest: Largest magnitude in the result; inf or NaN where there is one.
        finite_fraction: Share of finite values in the result; NaN where it was not counted.
        largest_finite: Largest magnitude among the finite values; NaN where it was not looked for.
        range: At level "full": how the magnitudes lie in a format.
    """

    index: int
    op: str
    phase: str
    module: str
    output: int
    occurrence: int
    source: str
    gradient_of: str
    inputs: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    largest: float
    finite_fraction: float
    largest_finite: float
    range: RangeRecord | None = None

    @property
    def is_finite(self) -> bool:
        """Whether the result holds neither inf nor NaN."""
        return self.largest - self.largest == 0

    @property
    def place(self) -> str:
        """Where it is, in words: op, module, phase, dtype, line."""
        name = f"{self.op} ({self.gradient_of})" if self.gradient_of else self.op
        where = self.module or "the loss function"
        line = f", {self.source}" if self.source else ""
        return f"{name} in {where} ({self.phase}, {self.dtype}{line})"


@dataclass(frozen=True, slots=True)
class LayerRecord(PlainRecord):
    """One module, in one phase of one pass.

    Attributes:
        module: Path as in `OpRecord`.
        kind: Class name of the module.
        phase: ``"forward"``: its result; ``"backward"``: the gradient that arrives at its result.
        dtype: Of that tensor.
        shape: Of that tensor.
        largest: Largest magnitude; inf or NaN where there is one.
        finite_fraction: Share of finite values.
    """

    module: str
    kind: str
    phase: str
    dtype: str
    shape: tuple[int, ...]
    largest: float
    finite_fraction: float

    @property
    def is_finite(self) -> bool:
        """Whether the tensor holds neither inf nor NaN."""
        return self.largest - self.largest == 0

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape)) or "scalar"
        text = f"{self.module} ({self.kind}, {self.phase}, {self.dtype}, {shape})"
        share = "" if self.is_finite else f", {self.finite_fraction:.1%} of the values are finite"
        return f"{text}: largest magnitude {self.largest:.4g}{share}"


@dataclass(frozen=True, slots=True)
class TraceRecord(PlainRecord):
    """All ops of a traced pass, in order.

    Attributes:
        ops: One record per op with a floating-point result; views are left out.
    """

    ops: tuple[OpRecord, ...] = field(default=())

    @property
    def first_bad(self) -> OpRecord | None:
        """The first op whose result is not finite, producer or not."""
        return next((op for op in self.ops if not op.is_finite), None)

    def lines(self) -> Iterable[str]:
        """JSON Lines, one per op, without line ends."""
        return (json.dumps(op.to_dict(), allow_nan=False) for op in self.ops)

    def save(self, path: str | Path) -> None:
        """Write the ops as JSON Lines."""
        text = "".join(f"{line}\n" for line in self.lines())
        Path(path).write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> TraceRecord:
        """Read what `save` wrote."""
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        return cls(tuple(OpRecord.from_dict(json.loads(line)) for line in lines))
