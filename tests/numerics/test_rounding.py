"""Rounding to a format and its bits, against torch's casts, IEEE 754 and exact fractions."""

from __future__ import annotations

import math
import struct
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import halfstep as hs
from halfstep.numerics import FORMATS

WITH_DTYPE = [hs.FP32, hs.FP16, hs.BF16, hs.E4M3, hs.E5M2]
BELOW_FP32 = [hs.FP16, hs.BF16, hs.E4M3, hs.E5M2]
INT_OF_BITS = {8: torch.uint8, 16: torch.int16, 32: torch.int32}


def every_pattern(row: hs.Format) -> tuple[Tensor, Tensor]:
    """All bit patterns of a format, and torch's reading of them in float64."""
    patterns = torch.arange(2**row.bits)
    assert row.dtype is not None
    return patterns, patterns.to(INT_OF_BITS[row.bits]).view(row.dtype).double()


def random_fp32(count: int, exponents: tuple[int, int]) -> Tensor:
    """FP32 values of every size, as float64.

    torch casts float64 to a small format by way of FP32, which rounds twice; from FP32 it rounds
    once, as `Format.round` does from float64.
    """
    mantissas = 1 + torch.rand(count, dtype=torch.float64)
    signs = torch.randint(0, 2, (count,)).double() * 2 - 1
    return torch.ldexp(signs * mantissas, torch.randint(*exponents, (count,))).float().double()


def pattern(row: hs.Format, value: float) -> int:
    sign, exponent, mantissa = row.encode(value)
    return (sign << row.exponent_bits | exponent) << row.mantissa_bits | mantissa


def assert_same(actual: Tensor, expected: Tensor) -> None:
    """Equal values, equal signs of zero, NaN where NaN."""
    assert torch.equal(actual.isnan(), expected.isnan())
    numbers = ~expected.isnan()
    assert torch.equal(actual[numbers], expected[numbers])
    assert torch.equal(actual[numbers].signbit(), expected[numbers].signbit())


@pytest.mark.parametrize("row", BELOW_FP32, ids=str)
def test_round_of_every_bit_pattern_is_the_identity(row: hs.Format) -> None:
    _, values = every_pattern(row)
    assert_same(row.round(values), values)


@pytest.mark.parametrize("row", BELOW_FP32, ids=str)
def test_encode_of_every_bit_pattern_gives_the_pattern_back(row: hs.Format) -> None:
    patterns, values = every_pattern(row)
    numbers = ~values.isnan()
    encoded = [pattern(row, value) for value in values[numbers].tolist()]
    assert encoded == patterns[numbers].tolist()


@pytest.mark.parametrize("row", WITH_DTYPE, ids=str)
def test_encode_of_nan_is_a_nan_to_torch(row: hs.Format) -> None:
    bits = torch.tensor([pattern(row, math.nan)]).to(INT_OF_BITS[row.bits])
    assert row.dtype is not None
    assert bits.view(row.dtype).float().isnan().all()


@pytest.mark.parametrize("row", [hs.FP16, hs.BF16, hs.E5M2], ids=str)
def test_round_of_random_values_equals_torch_cast(row: hs.Format) -> None:
    values = random_fp32(200_000, (-149, 128))
    assert_same(row.round(values), values.to(row.dtype).double())


def test_round_of_random_float64_to_fp32_equals_torch_cast() -> None:
    mantissas = 1 + torch.rand(200_000, dtype=torch.float64)
    values = torch.ldexp(mantissas, torch.randint(-155, 135, (200_000,)))
    assert_same(hs.FP32.round(values), values.float().double())


def test_round_to_e4m3_within_its_range_equals_torch_cast() -> None:
    values = random_fp32(200_000, (-14, 9)).clamp(-448, 448)  # beyond, torch saturates
    assert_same(hs.E4M3.round(values), values.to(hs.E4M3.dtype).double())


@pytest.mark.parametrize("row", BELOW_FP32, ids=str)
def test_round_of_every_halfway_case_and_its_neighbours_equals_torch_cast(row: hs.Format) -> None:
    _, values = every_pattern(row)
    steps = values[values.isfinite() & (values >= 0)]
    halfway = ((steps[:-1] + steps[1:]) / 2).float()  # exact: one bit more than the format has
    above = halfway.nextafter(torch.tensor(math.inf))
    below = halfway.nextafter(torch.tensor(0.0))
    cases = torch.cat([halfway, above, below, -halfway, -above, -below])
    assert_same(row.round(cases.double()), cases.to(row.dtype).double())


@pytest.mark.parametrize("row", WITH_DTYPE, ids=str)
def test_encode_of_random_values_gives_the_bits_of_torch_cast(row: hs.Format) -> None:
    values = random_fp32(5_000, (row.min_exponent - row.mantissa_bits - 1, row.max_exponent))
    bits = values.to(row.dtype).view(INT_OF_BITS[row.bits]).long() % 2**row.bits
    encoded = [pattern(row, value) for value in row.round(values).tolist()]
    assert encoded == bits.tolist()


@settings(deadline=None, derandomize=True)
@given(st.floats())
def test_round_to_fp16_equals_the_standard_library(value: float) -> None:
    try:
        expected = struct.unpack("e", struct.pack("e", value))[0]  # IEEE, from float64 at once
    except OverflowError:
        expected = math.copysign(math.inf, value)
    actual = hs.FP16.round(torch.tensor([value], dtype=torch.float64))
    assert_same(actual, torch.tensor([expected], dtype=torch.float64))


@pytest.mark.parametrize("row", FORMATS.values(), ids=str)
@settings(deadline=None, derandomize=True)
@given(value=st.floats(allow_nan=False, allow_infinity=False))
def test_round_equals_exact_fractions(row: hs.Format, value: float) -> None:
    # oracle: Fraction's round is exact, to nearest and ties to even
    exponent = max(math.frexp(value)[1] - 1, row.min_exponent)
    spacing = Fraction(2) ** (exponent - row.mantissa_bits)
    exact = round(Fraction(value) / spacing) * spacing
    rounded = hs.Format.round(row, torch.tensor(value, dtype=torch.float64)).item()
    if abs(exact) > Fraction(row.largest):
        assert math.isinf(rounded) if row.has_inf else math.isnan(rounded)
    else:
        assert Fraction(rounded) == exact
    assert math.copysign(1, rounded) == math.copysign(1, value)


@pytest.mark.parametrize(
    ("row", "value", "expected"),
    [
        (hs.FP16, 65504.0, 65504.0),
        (hs.FP16, 65519.99, 65504.0),
        (hs.FP16, 65520.0, math.inf),  # halfway to 2^16: to even
        (hs.FP16, -65520.0, -math.inf),
        (hs.FP16, 2.0**-25, 0.0),  # halfway to the smallest subnormal: to even
        (hs.FP16, 2.0**-25 * (1 + 2.0**-52), 2.0**-24),
        (hs.FP16, -(2.0**-25), -0.0),
        (hs.E5M2, 61440.0, math.inf),
        (hs.E4M3, 463.99, 448.0),
        (hs.E4M3, 464.0, 448.0),  # halfway to 480, whose pattern is NaN: 448 is even
        (hs.E4M3, 464.01, math.nan),
        (hs.E4M3, math.inf, math.nan),
        (hs.E4M3, 1e300, math.nan),
    ],
    ids=str,
)
def test_round_at_a_boundary_follows_ieee(row: hs.Format, value: float, expected: float) -> None:
    actual = row.round(torch.tensor([value], dtype=torch.float64))
    assert_same(actual, torch.tensor([expected], dtype=torch.float64))
