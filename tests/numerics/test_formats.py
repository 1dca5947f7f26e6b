"""Limits of the format rows, against torch.finfo, IEEE 754 and published tables."""

from __future__ import annotations

import pytest
import torch

import halfstep as hs
from halfstep.numerics import format_named

WITH_DTYPE = [hs.FP32, hs.FP16, hs.BF16, hs.E4M3, hs.E5M2]
INT_OF_BITS = {8: torch.uint8, 16: torch.int16, 32: torch.int32}


@pytest.mark.parametrize("row", WITH_DTYPE, ids=str)
def test_limits_of_a_dtype_equal_torch_finfo(row: hs.Format) -> None:
    assert row.dtype is not None
    info = torch.finfo(row.dtype)
    limits = (row.bits, row.largest, row.smallest_normal, row.eps)
    assert limits == (info.bits, info.max, info.smallest_normal, info.eps)


@pytest.mark.parametrize("row", WITH_DTYPE, ids=str)
def test_smallest_subnormal_is_the_pattern_one(row: hs.Format) -> None:
    assert row.dtype is not None
    one = torch.tensor([1], dtype=INT_OF_BITS[row.bits]).view(row.dtype)  # IEEE 754, section 3.4
    assert row.smallest_subnormal == one.double().item()


def test_limits_of_tf32_are_fp32_range_with_fp16_accuracy() -> None:
    # closed form for 1 + 8 + 10 bits
    row = hs.TF32
    limits = (row.bits, row.largest, row.smallest_normal, row.smallest_subnormal, row.eps)
    assert limits == (19, (2 - 2.0**-10) * 2.0**127, 2.0**-126, 2.0**-136, 2.0**-10)


@pytest.mark.parametrize(
    ("row", "largest", "smallest_normal", "smallest_subnormal"),
    [(hs.E4M3, 448.0, 2.0**-6, 2.0**-9), (hs.E5M2, 57344.0, 2.0**-14, 2.0**-16)],
    ids=str,
)
def test_limits_of_fp8_equal_the_published_table(
    row: hs.Format, largest: float, smallest_normal: float, smallest_subnormal: float
) -> None:
    # OCP 8-bit Floating Point Specification 1.0, table 1
    limits = (row.largest, row.smallest_normal, row.smallest_subnormal)
    assert limits == (largest, smallest_normal, smallest_subnormal)


def test_bf16_has_more_range_and_less_accuracy_than_fp16() -> None:
    # torch.finfo: 3.4e38 against 65504, and 2^-7 against 2^-10
    assert hs.BF16.largest / hs.FP16.largest > 2.0**111
    assert hs.BF16.eps == 8 * hs.FP16.eps


def test_format_named_in_capitals_is_the_row() -> None:
    assert format_named("BF16") is hs.BF16


def test_format_named_unknown_lists_the_names() -> None:
    with pytest.raises(ValueError, match=r"one of fp32, tf32, fp16, bf16, .*got 'fp12'") as caught:
        format_named("fp12")
    assert isinstance(caught.value, hs.HalfstepError)
