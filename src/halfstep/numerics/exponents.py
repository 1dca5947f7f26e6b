"""How the magnitudes of a tensor are spread over powers of two, and what a format makes of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from halfstep.numerics.formats import Format

_BIAS = 127  # of FP32, whose exponent field is counted
_NUM_FIELDS = 256
_LARGEST_FIELD = _NUM_FIELDS - 1


@dataclass(frozen=True)
class ExponentCounts:
    """Values counted by exponent, on their device until read.

    Attributes:
        counts: int64, shape (257,): per exponent field of FP32 (field 0: zeros and what is below
            FP32's normals; field 255: inf and NaN), then the number of zeros.
    """

    counts: Tensor

    @classmethod
    def of(cls, values: Tensor) -> ExponentCounts:
        """Count the values of a tensor of any floating dtype (float64 as rounded to float32).

        Syncs: no.
        """
        flat = values.detach().reshape(-1).float()
        fields = (flat.view(torch.int32) >> 23) & _LARGEST_FIELD
        counts = torch.bincount(fields, minlength=_NUM_FIELDS)
        return cls(torch.cat([counts, (flat == 0).sum().reshape(1)]))

    def __add__(self, other: ExponentCounts) -> ExponentCounts:
        return ExponentCounts(self.counts + other.counts)

    def read(self) -> Magnitudes:
        """The same on the host.

        Syncs: yes.
        """
        *fields, zeros = self.counts.tolist()
        histogram = {field - _BIAS: n for field, n in enumerate(fields[:-1]) if n and field}
        if below := fields[0] - zeros:
            histogram[-_BIAS] = below
        return Magnitudes(dict(sorted(histogram.items())), zeros, fields[-1])


@dataclass(frozen=True)
class Magnitudes:
    """The histogram of a tensor.

    Attributes:
        histogram: Exponent e to the number of values with ``2^e <= |value| < 2^(e+1)``; FP32's
            subnormals are all under -127.
        num_zero: Values that are 0.
        num_non_finite: Values that are inf or NaN.
    """

    histogram: dict[int, int]
    num_zero: int
    num_non_finite: int

    @property
    def num_nonzero(self) -> int:
        """Finite values that are not 0."""
        return sum(self.histogram.values())

    @property
    def num_values(self) -> int:
        """All values."""
        return self.num_nonzero + self.num_zero + self.num_non_finite

    def below(self, exponent: int) -> int:
        """How many values that are not 0 lie below ``2^exponent``."""
        return sum(n for e, n in self.histogram.items() if e < exponent)

    def underflowing(self, format: Format, scale_exponent: int = 0) -> int:
        """How many values that are not 0 become 0 in `format`, times ``2^scale_exponent``.

        Exact but for values that are exactly half of the smallest subnormal, which become 0 too.
        """
        return self.below(round(math.log2(format.smallest_subnormal)) - 1 - scale_exponent)

    def subnormal(self, format: Format, scale_exponent: int = 0) -> int:
        """How many values lose bits in `format` because they lie below its normal numbers."""
        normal = self.below(format.min_exponent - scale_exponent)
        return normal - self.underflowing(format, scale_exponent)

    def overflowing(self, format: Format, scale_exponent: int = 0) -> int:
        """How many finite values lie beyond the format's largest power of two, times 2.

        Values between the largest finite number and that (65504 and 65536) are not counted.
        """
        return self.num_nonzero - self.below(format.max_exponent + 1 - scale_exponent)
