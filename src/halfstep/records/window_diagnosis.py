"""`WindowDiagnosis`: which op of a skipped window broke, and whether the scale is to blame."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from halfstep.records.floats import decode_floats, encode_floats

Verdict = Literal["scale_searching", "never_finite", "bad_batch", "not_reproduced"]


@dataclass(frozen=True, slots=True)
class WindowDiagnosis:
    """What a replay of a skipped window found.

    Attributes:
        verdict: ``"scale_searching"`` (finite at a lower loss scale), ``"never_finite"`` (inf or
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

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        data: dict[str, Any] = encode_floats(asdict(self))
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> WindowDiagnosis:
        """The inverse of `to_dict`."""
        numbers = ("largest_input", "finite_fraction", "scale", "finite_at_scale")
        decoded = {k: decode_floats(v) if k in numbers else v for k, v in data.items()}
        return cls(**{**decoded, "shape": tuple(data["shape"])})

    def __str__(self) -> str:
        if self.verdict == "not_reproduced":
            return "the replay of the window was finite; something outside of it changed"
        place = f"{self.op} in {self.module or 'the loss function'} ({self.phase}, {self.dtype})"
        where = f"first in {place}, largest input {self.largest_input:.4g}"
        if self.verdict == "bad_batch":
            return f"a value of the batch is not finite; {where}"
        if self.verdict == "scale_searching":
            return (
                f"the loss scale is searching: finite at {self.finite_at_scale:g} instead of"
                f" {self.scale:g}; {where}"
            )
        return f"NaN or inf at any loss scale; {where}"
