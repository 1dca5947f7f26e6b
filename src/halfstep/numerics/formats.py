"""Number formats as rows; every limit is derived from the bit counts.

BF16 has FP32's range and *less* accuracy than FP16: 8 bits of significand against 11. A row has
both numbers (`largest`, `eps`) so that neither is forgotten.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from halfstep.records import BadValueError


@dataclass(frozen=True)
class Format:
    """A binary floating-point format.

    Attributes:
        name: Lower-case name, as everywhere in halfstep.
        exponent_bits: Width of the exponent field.
        mantissa_bits: Stored significand bits (the leading 1 is not stored).
        has_inf: Whether the top exponent is reserved for inf and NaN. E4M3 has no inf and uses
            that exponent for numbers; only its all-ones pattern is NaN.
        dtype: torch's dtype; ``None`` for TF32, which exists inside matrix units only.

    Source: IEEE 754-2019, section 3.4; OCP 8-bit Floating Point Specification 1.0, table 1.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    has_inf: bool
    dtype: torch.dtype | None

    @property
    def bits(self) -> int:
        """Sign, exponent and mantissa bits together (19 for TF32, which is stored in 32)."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def bias(self) -> int:
        """What is added to an exponent to store it."""
        return int(2 ** (self.exponent_bits - 1)) - 1

    @property
    def max_exponent(self) -> int:
        """Exponent of the largest finite value."""
        return self.bias if self.has_inf else self.bias + 1

    @property
    def min_exponent(self) -> int:
        """Exponent of the smallest normal value."""
        return 1 - self.bias

    @property
    def largest(self) -> float:
        """Largest finite value."""
        missing = 1 if self.has_inf else 2  # E4M3's all-ones significand is NaN
        return (2.0 - missing * self.eps) * math.ldexp(1.0, self.max_exponent)

    @property
    def smallest_normal(self) -> float:
        """Smallest positive value with full accuracy; below it bits are lost."""
        return math.ldexp(1.0, self.min_exponent)

    @property
    def smallest_subnormal(self) -> float:
        """Smallest positive value; half of it and less rounds to 0."""
        return math.ldexp(1.0, self.min_exponent - self.mantissa_bits)

    @property
    def eps(self) -> float:
        """Spacing of the format at 1."""
        return math.ldexp(1.0, -self.mantissa_bits)

    def round(self, values: Tensor) -> Tensor:
        """Round float64 values to this format, to nearest and ties to even.

        By arithmetic, not by a cast, so that it works for TF32 and does not saturate: torch's cast
        to ``float8_e4m3fn`` turns even inf into 448 on a CPU.

        Args:
            values: float64, any shape.

        Returns:
            float64 of the same shape: what each value becomes. Beyond the largest finite value
            that is inf, or NaN where the format has no inf.
        """
        finite = torch.isfinite(values)
        _, exponent = torch.frexp(torch.where(finite, values, torch.zeros_like(values)))
        spacing_exponent = (exponent - 1).clamp(min=self.min_exponent) - self.mantissa_bits
        spacing = torch.ldexp(torch.ones_like(values), spacing_exponent)
        rounded = torch.where(finite, torch.round(values / spacing) * spacing, values)
        beyond = torch.full_like(values, math.inf if self.has_inf else math.nan)
        return torch.where(rounded.abs() > self.largest, beyond.copysign(values), rounded)

    def encode(self, value: float) -> tuple[int, int, int]:
        """Sign, exponent and mantissa fields of a value that this format represents.

        Args:
            value: A result of `round`.

        Returns:
            The three fields as integers; `bits` says how wide they are.
        """
        sign = int(math.copysign(1.0, value) < 0)
        top = (1 << self.exponent_bits) - 1
        if math.isnan(value):
            return sign, top, (1 << self.mantissa_bits) - 1
        if math.isinf(value):
            return sign, top, 0
        if abs(value) < self.smallest_normal:
            return sign, 0, int(abs(value) / self.smallest_subnormal)
        exponent = math.frexp(value)[1] - 1
        mantissa = int(math.ldexp(abs(value), self.mantissa_bits - exponent))
        return sign, exponent + self.bias, mantissa - (1 << self.mantissa_bits)

    def __str__(self) -> str:
        return self.name


FP32 = Format("fp32", 8, 23, True, torch.float32)
TF32 = Format("tf32", 8, 10, True, None)
FP16 = Format("fp16", 5, 10, True, torch.float16)
BF16 = Format("bf16", 8, 7, True, torch.bfloat16)
E4M3 = Format("e4m3", 4, 3, False, torch.float8_e4m3fn)
E5M2 = Format("e5m2", 5, 2, True, torch.float8_e5m2)

FORMATS = {row.name: row for row in (FP32, TF32, FP16, BF16, E4M3, E5M2)}


def format_named(name: str) -> Format:
    """The row called `name`.

    Raises:
        BadValueError: There is none; the message lists the names.
    """
    try:
        return FORMATS[name.lower()]
    except KeyError:
        raise BadValueError(f"format must be one of {', '.join(FORMATS)}, got {name!r}.") from None
