"""Histograms of exponents, against frexp and against the format's own rounding."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from halfstep.numerics import BF16, E4M3, E5M2, FP16, Format
from halfstep.numerics.exponents import ExponentCounts

floats = st.floats(width=32, allow_nan=True, allow_infinity=True)


@given(st.lists(floats, min_size=1, max_size=40))
@settings(max_examples=60)
def test_histogram_counts_each_value_once_under_its_exponent(values: list[float]) -> None:
    found = ExponentCounts.of(torch.tensor(values)).read()
    expected: dict[int, int] = {}
    for value in values:
        if math.isfinite(value) and value != 0:
            exponent = max(math.frexp(value)[1] - 1, -127)
            expected[exponent] = expected.get(exponent, 0) + 1
    assert found.histogram == dict(sorted(expected.items()))
    assert found.num_zero == values.count(0.0)
    assert found.num_values == len(values)


@pytest.mark.parametrize("format", [FP16, BF16, E4M3, E5M2], ids=str)
@pytest.mark.parametrize("scale_exponent", [0, 7, -5])
def test_shares_agree_with_rounding_by_the_format(format: Format, scale_exponent: int) -> None:
    exponents = torch.arange(-60, 20).double()
    values = torch.cat([torch.exp2(exponents) * f for f in (1.03, 1.5, -1.9)])
    found = ExponentCounts.of(values).read()
    scaled = values * 2.0**scale_exponent
    rounded = format.round(scaled)
    zero = rounded == 0
    normal = scaled.abs() >= format.smallest_normal
    assert found.underflowing(format, scale_exponent) == int(zero.sum())
    assert found.subnormal(format, scale_exponent) == int((~normal & ~zero).sum())
    beyond = scaled.abs() >= 2.0 ** (format.max_exponent + 1)
    assert found.overflowing(format, scale_exponent) == int(beyond.sum())


def test_counts_of_two_tensors_add_up_in_every_dtype() -> None:
    half = torch.tensor([1.0, 0.0, math.inf]).half()
    wide = torch.tensor([3.0, math.nan]).bfloat16()
    both = (ExponentCounts.of(half) + ExponentCounts.of(wide)).read()
    assert (both.histogram, both.num_zero, both.num_non_finite) == ({0: 1, 1: 1}, 1, 2)
