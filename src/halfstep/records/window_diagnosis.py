"""`WindowDiagnosis`: which op of a skipped window broke, and whether the scale is to blame."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from halfstep.records.floats import decode_floats, encode_floats

Verdict = Literal[
    "scale_searching", "loss_too_large", "never_finite", "bad_batch", "not_reproduced"
]


@dataclass(frozen=True, slots=True)
class WindowDiagnosis:
    """What a replay of a skipped window found.

    Attributes:
        verdict: ``"scale_searching"`` (finite at a lower loss scale that is allowed),
            ``"loss_too_large"`` (finite only at one below `min_scale`), ``"never_finite"`` (inf or
            NaN at every scale that was tried), ``"bad_batch"`` (an input was not finite) or
            ``"not_reproduced"`` (the replay was finite).
        op: Name of the first op that made inf or NaN from finite inputs, as ``aten.mul``.
        module: Path of the module it ran in; empty outside of any.
        phase: ``"forward"`` or ``"backward"``.
        dtype: Of its result, as ``float16``.
        shape: Of its result.
        largest_input: Largest magnitude among its inputs.
        finite_fraction: Share of finite values in its result.
        scale: Loss scale of the window.
        finite_at_scale: The largest lower scale at which the window was finite, if any.
        buffers_restored: Whether module buffers are as before the window.
        min_scale: The lowest loss scale that the run allows; ``None`` where it has none.
        bad_input: Part of the batch that is not finite, as ``batch[0]``; of a window of several
            micro-batches with their number, as ``micro-batch 2, batch[0]``.
        bad_samples: Numbers of the samples in it that are not finite, from 0; the first eight.
        rank: The process whose own batch it was, among several; ``None`` in a process of its own,
            and where none found anything.
    """

    verdict: Verdict
    op: str
    module: str
    phase: str
    dtype: str
    shape: tuple[int, ...]
    largest_input: float
    finite_fraction: float
    scale: float
    finite_at_scale: float | None
    buffers_restored: bool
    min_scale: float | None = None
    bad_input: str = ""
    bad_samples: tuple[int, ...] = ()
    rank: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        data: dict[str, Any] = encode_floats(asdict(self))
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> WindowDiagnosis:
        """The inverse of `to_dict`."""
        numbers = ("largest_input", "finite_fraction", "scale", "finite_at_scale", "min_scale")
        decoded = {k: decode_floats(v) if k in numbers else v for k, v in data.items()}
        samples = tuple(data.get("bad_samples", ()))
        return cls(**{**decoded, "shape": tuple(data["shape"]), "bad_samples": samples})

    def __str__(self) -> str:
        return self._text() if self.rank is None else f"on rank {self.rank}: {self._text()}"

    def _text(self) -> str:
        if self.verdict == "not_reproduced":
            return "the replay of the window was finite; something outside of it changed"
        place = f"{self.op} in {self.module or 'the loss function'} ({self.phase}, {self.dtype})"
        where = f"first in {place}, largest input {self.largest_input:.4g}"
        if self.verdict == "bad_batch":
            return f"{self._bad_input()} is not finite; {where}"
        if self.verdict == "scale_searching":
            return (
                f"the loss scale is searching: finite at {self.finite_at_scale:g} instead of"
                f" {self.scale:g}; {where}"
            )
        if self.verdict == "loss_too_large":
            assert self.finite_at_scale is not None
            assert self.min_scale is not None
            bits = max(1, math.ceil(math.log2(self.min_scale / self.finite_at_scale)))
            return (
                f"no loss scale above min_scale={self.min_scale:g} helps: the loss is 2^{bits} too"
                f" large (finite at a scale of 2^{round(math.log2(self.finite_at_scale))}); divide"
                f" it, or allow a lower min_scale; {where}"
            )
        return f"NaN or inf at any loss scale; {where}"

    def _bad_input(self) -> str:
        if not self.bad_input:
            return "a value of the batch"
        if not self.bad_samples:
            return self.bad_input
        numbers = ", ".join(map(str, self.bad_samples))
        return f"{self.bad_input}, sample{'s' * (len(self.bad_samples) > 1)} {numbers},"
