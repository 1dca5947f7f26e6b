"""Numbers as people type them, against Python's own arithmetic."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halfstep.numerics import parse_number
from halfstep.records import HalfstepError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0.0),
        ("1e-8", 1e-8),
        ("-1e-8", -1e-8),
        (" 3.5 ", 3.5),
        (".5", 0.5),
        ("2^-30", 2.0**-30),
        ("2**-30", 2.0**-30),
        ("2^16", 65536.0),
        ("2^+3", 8.0),
        ("1.5^2", 2.25),
        (".5^2", 0.25),
        ("-2^2", -4.0),  # the sign applies to the power, as in Python
        ("10^0", 1.0),
        ("0^2", 0.0),
        ("0x1p-3", 0.125),
        ("-0X1.8P1", -3.0),
        ("0x10", 16.0),
        ("inf", math.inf),
        ("-inf", -math.inf),
    ],
)
def test_number_as_typed_is_read(text: str, expected: float) -> None:
    assert parse_number(text) == expected


def test_nan_is_read_as_nan() -> None:
    assert math.isnan(parse_number("nan"))


def test_negative_zero_keeps_its_sign() -> None:
    assert math.copysign(1.0, parse_number("-0")) == -1.0


@settings(deadline=None, derandomize=True)
@given(st.floats(allow_nan=False))
def test_decimal_spelling_of_any_float_is_read_exactly(value: float) -> None:
    assert parse_number(repr(value)) == value


@settings(deadline=None, derandomize=True)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_hexadecimal_spelling_of_any_float_is_read_exactly(value: float) -> None:
    assert parse_number(value.hex()) == value


@settings(deadline=None, derandomize=True)
@given(st.integers(-1074, 1023))
def test_power_of_two_is_exact_over_all_of_float64(exponent: int) -> None:
    assert parse_number(f"2^{exponent}") == math.ldexp(1.0, exponent)


@pytest.mark.parametrize(
    "text", ["", " ", "abc", "2^", "^2", "2^0.5", "(-2)^2", "2^2^2", "1,5", "1 2", "1e", "0xg"]
)
def test_text_that_is_no_number_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected a number such as 2\^-30, .*got '") as caught:
        parse_number(text)
    assert isinstance(caught.value, HalfstepError)


@pytest.mark.parametrize("text", ["2^1024", "-10^309", "0x1p1024", "1e309", "-1e400"])
def test_finite_number_beyond_float64_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is beyond float64 \(largest: about 1.8e308\)"):
        parse_number(text)


@pytest.mark.parametrize("text", ["0^-1", "-0.0^-2"])
def test_zero_to_a_negative_power_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is 0 to a negative power, which has no value"):
        parse_number(text)
