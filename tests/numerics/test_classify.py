"""`classify`: what a value becomes, against closed forms and torch's casts."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import halfstep as hs
from halfstep.numerics import FORMATS, Classified


def one(value: float, row: hs.Format, scale: float = 1.0) -> Classified:
    (result,) = hs.classify(value, row, scale)
    return result


def test_gradient_of_the_tutorial_at_its_scale_is_an_exact_normal() -> None:
    # closed form: 2^-30 * 2^16 = 2^-14, the smallest normal of FP16: exponent field 1
    result = one(2.0**-30, hs.FP16, 2.0**16)
    assert (result.category, result.rounded, result.error) == ("exact", 2.0**-14, 0.0)
    assert (result.sign, result.exponent, result.mantissa) == ("0", "00001", "0000000000")


def test_gradient_of_the_tutorial_without_scale_underflows() -> None:
    result = one(2.0**-30, hs.FP16)
    assert (result.category, result.rounded, result.error) == ("underflow", 0.0, 1.0)


def test_two_at_the_scale_of_the_tutorial_overflows_fp16() -> None:
    result = one(2.0, hs.FP16, 2.0**16)  # 131072 > 65504
    assert (result.category, result.scaled) == ("overflow", 131072.0)
    assert (result.rounded, result.error) == (math.inf, math.inf)


def test_two_at_the_scale_of_the_tutorial_is_exact_in_bf16() -> None:
    assert one(2.0, hs.BF16, 2.0**16).category == "exact"


@pytest.mark.parametrize(
    ("value", "category"),
    [
        (1.0, "exact"),
        (1.0 + 2.0**-11, "rounded"),
        (2.0**-14, "exact"),
        (2.0**-14 - 2.0**-24, "subnormal"),
        (2.0**-24, "subnormal"),
        (2.0**-25 * (1 + 2.0**-52), "subnormal"),
        (2.0**-25, "underflow"),
        (65504.0, "exact"),
        (65519.99, "rounded"),
        (65520.0, "overflow"),
        (-65520.0, "overflow"),
        (0.0, "zero"),
        (-0.0, "zero"),
        (math.inf, "inf"),
        (-math.inf, "inf"),
        (math.nan, "nan"),
    ],
)
def test_category_in_fp16_follows_ieee(value: float, category: str) -> None:
    assert one(value, hs.FP16).category == category


@pytest.mark.parametrize("row", FORMATS.values(), ids=str)
def test_negative_zero_keeps_its_sign_bit(row: hs.Format) -> None:
    result = one(-0.0, row, 8.0)
    assert result.sign == "1"
    assert set(result.exponent + result.mantissa) == {"0"}


@pytest.mark.parametrize("row", FORMATS.values(), ids=str)
def test_nan_has_all_ones_in_the_exponent_and_a_mantissa(row: hs.Format) -> None:
    result = one(math.nan, row)  # IEEE 754, section 3.4; OCP table 1 for E4M3
    assert set(result.exponent) == {"1"}
    assert "1" in result.mantissa


def test_overflow_in_e4m3_is_nan_and_not_saturated() -> None:
    result = one(1000.0, hs.E4M3)  # OCP 1.0: S.1111.111 is the NaN; torch's CPU cast gives 448
    assert result.category == "overflow"
    assert math.isnan(result.rounded)
    assert (result.exponent, result.mantissa) == ("1111", "111")


@pytest.mark.parametrize("row", FORMATS.values(), ids=str)
def test_fields_are_as_wide_as_the_format(row: hs.Format) -> None:
    result = one(-1.5, row)
    assert len(result.sign + result.exponent + result.mantissa) == row.bits


def test_error_of_a_rounded_value_is_relative() -> None:
    # closed form: 1 + 2^-11 is a tie and goes to 1
    result = one(1.0 + 2.0**-11, hs.FP16)
    assert result.error == 2.0**-11 / (1.0 + 2.0**-11)


@settings(deadline=None, derandomize=True)
@given(st.floats(min_value=2.0**-14, max_value=65504.0))
def test_error_of_a_normal_is_at_most_half_an_eps(value: float) -> None:
    assert one(value, hs.FP16).error <= torch.finfo(torch.float16).eps / 2


@pytest.mark.parametrize("row", FORMATS.values(), ids=str)
def test_overflow_of_the_product_itself_has_infinite_error(row: hs.Format) -> None:
    result = one(1e308, row, 2.0**16)  # 6.6e312 is beyond float64, and finite
    assert (result.category, result.error) == ("overflow", math.inf)


def test_underflow_of_the_product_itself_has_error_one() -> None:
    result = one(5e-324, hs.FP32, 2.0**-10)  # not 0, below float64
    assert (result.category, result.error) == ("underflow", 1.0)


def test_tensor_of_any_shape_is_flattened_in_order() -> None:
    values = torch.tensor([[1.0, 2.0**-30], [1e6, -0.0]])
    found = [row.category for row in hs.classify(values, hs.FP16)]
    assert found == ["exact", "underflow", "overflow", "zero"]


def test_tensor_with_a_graph_is_left_alone() -> None:
    values = torch.tensor([0.1], requires_grad=True)
    assert [row.category for row in hs.classify(values, hs.FP32)] == ["exact"]
    assert values.grad is None


def test_bf16_tensor_is_read_without_loss() -> None:
    values = torch.tensor([3.140625], dtype=torch.bfloat16)
    assert [row.category for row in hs.classify(values, hs.BF16)] == ["exact"]


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
def test_scale_that_is_not_positive_and_finite_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="scale must be positive and finite, got") as caught:
        hs.classify(1.0, hs.FP16, scale)
    assert isinstance(caught.value, hs.HalfstepError)
