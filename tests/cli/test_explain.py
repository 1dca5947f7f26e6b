"""``halfstep explain``: the question of R02, typed."""

from __future__ import annotations

import json
import math
import re
import struct
from typing import Any

import pytest
from typer.testing import Result
from user_recipes import Invoke

from halfstep.numerics import FORMATS


def rows_in(result: Result) -> list[dict[str, Any]]:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    rows: list[dict[str, Any]] = json.loads(result.stdout, parse_constant=refuse)
    return rows


def cells_in(result: Result) -> list[list[str]]:
    lines = [line.strip() for line in result.stdout.splitlines() if line.strip()]
    start = next(i for i, line in enumerate(lines) if line.startswith("─"))
    return [re.split(r"\s{2,}", line) for line in lines[start + 1 :]]


def test_explain_of_the_tutorials_values_is_its_table(halfstep: Invoke) -> None:
    result = halfstep("explain", "2^-30", "2", "--scale", "2^16", "--format", "fp16")
    assert result.exit_code == 0
    # 2^-30 * 2^16 = 2^-14 is FP16's smallest normal; 2 * 2^16 = 131072 is beyond 65504
    assert cells_in(result) == [
        ["9.31323e-10", "65536", "fp16", "6.10352e-05", "exact", "0", "0 00001 0000000000"],
        ["2", "65536", "fp16", "inf", "overflow", "inf", "0 11111 0000000000"],
    ]


@pytest.mark.parametrize("value", ["-1e-8", "-0x1p-3", "-inf", "-2^3", "-.5"])
def test_explain_of_a_negative_value_is_no_option(halfstep: Invoke, value: str) -> None:
    result = halfstep("explain", value, "--format", "fp32", "--json")
    assert result.exit_code == 0
    (row,) = rows_in(result)
    assert row["sign"] == "1"


def test_explain_without_a_format_has_every_format(halfstep: Invoke) -> None:
    rows = rows_in(halfstep("explain", "1", "--json"))
    assert [row["format"] for row in rows] == list(FORMATS)


def test_explain_of_values_and_scales_has_a_row_for_each_pair(halfstep: Invoke) -> None:
    options = ["--scale", "1", "--scale", "2^10", "--format", "fp16", "--format", "bf16"]
    rows = rows_in(halfstep("explain", "1", "3", *options, "--json"))
    found = [(row["value"], row["scale"], row["format"]) for row in rows]
    formats = ("fp16", "bf16")
    assert found == [(v, s, f) for v in (1.0, 3.0) for s in (1.0, 1024.0) for f in formats]


@pytest.mark.parametrize("value", ["0.1", "-65504", "1e-7", "2^-24", "0", "-0"])
def test_explain_bits_in_fp16_are_those_of_the_standard_library(
    halfstep: Invoke, value: str
) -> None:
    (row,) = rows_in(halfstep("explain", value, "--format", "fp16", "--json"))
    bits = f"{struct.unpack('H', struct.pack('e', float(eval_power(value))))[0]:016b}"
    assert row["sign"] + row["exponent"] + row["mantissa"] == bits


def eval_power(text: str) -> float:
    base, _, exponent = text.partition("^")
    return math.pow(float(base), int(exponent)) if exponent else float(base)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_explain_of_a_non_finite_value_is_strict_json(halfstep: Invoke, value: str) -> None:
    rows = rows_in(halfstep("explain", value, "--json"))
    assert {row["category"] for row in rows} == {value.removeprefix("-")}
    assert {row["value"] for row in rows} == {value}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["abc"], "expected a number such as 2^-30"),
        (["1", "--scale", "0"], "scale must be positive and finite, got 0.0"),
        (["1", "--scale", "-2"], "scale must be positive and finite, got -2.0"),
        (["1", "--scale", "many"], "expected a number such as 2^-30"),
        (["1", "--format", "fp12"], "format must be one of fp32, tf32"),
        (["1", "--colour"], "no option --colour"),
        (["0^-1"], "0 to a negative power"),
    ],
    ids=" ".join,
)
def test_explain_of_a_bad_input_is_one_line_with_code_2(
    halfstep: Invoke, arguments: list[str], text: str
) -> None:
    result = halfstep("explain", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("halfstep: ")
    assert text in line


def test_explain_without_a_value_is_2(halfstep: Invoke) -> None:
    assert halfstep("explain").exit_code == 2
