"""`StepRecord`: its JSON form and the line people read."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halfstep import StepRecord
from halfstep.records.step import format_number

STEP = StepRecord(
    step=199,
    updated=True,
    reason=None,
    loss=0.4182,
    divisor=512.0,
    metrics={"accuracy": 0.5},
    grad_norm=0.93,
    clip_coef=1.0,
    loss_scale=65536.0,
    next_loss_scale=131072.0,
    lr=[3e-4],
    consumed=1e6,
    batch=198,
)
numbers = st.floats(allow_nan=False)
steps = st.builds(
    StepRecord,
    step=st.integers(1),
    updated=st.booleans(),
    reason=st.sampled_from([None, "non_finite", "empty_window"]),
    loss=numbers,
    divisor=st.none() | numbers,
    metrics=st.dictionaries(st.text(), numbers),
    grad_norm=numbers,
    clip_coef=numbers,
    loss_scale=numbers,
    next_loss_scale=numbers,
    lr=st.lists(numbers),
    consumed=numbers,
    batch=st.none() | st.integers(0),
)


def through_json(step: StepRecord) -> StepRecord:
    """To strict JSON text, which has no inf and no NaN, and back."""
    return StepRecord.from_dict(json.loads(json.dumps(step.to_dict(), allow_nan=False)))


@settings(deadline=None, derandomize=True)
@given(steps)
def test_json_round_trip_of_any_step_is_the_identity(step: StepRecord) -> None:
    assert through_json(step) == step


def test_json_round_trip_of_nan_is_nan_in_every_number() -> None:
    step = dataclasses.replace(
        STEP, loss=math.nan, grad_norm=math.nan, metrics={"accuracy": math.nan}, lr=[math.nan]
    )
    back = through_json(step)
    found = [back.loss, back.grad_norm, back.metrics["accuracy"], *back.lr]
    assert all(math.isnan(number) for number in found)
    whole = {"loss": 0.0, "grad_norm": 0.0, "metrics": {}, "lr": []}
    assert dataclasses.replace(back, **whole) == dataclasses.replace(step, **whole)


@pytest.mark.parametrize(
    ("value", "name"), [(math.inf, "inf"), (-math.inf, "-inf"), (math.nan, "nan")]
)
def test_non_finite_number_in_json_is_its_name(value: float, name: str) -> None:
    data = dataclasses.replace(STEP, grad_norm=value, metrics={"m": value}, lr=[value]).to_dict()
    assert (data["grad_norm"], data["metrics"], data["lr"]) == (name, {"m": name}, [name])


def test_dict_of_a_step_has_every_field() -> None:
    assert set(STEP.to_dict()) == {field.name for field in dataclasses.fields(StepRecord)}


def test_step_is_skipped_where_it_is_not_updated() -> None:
    assert not STEP.skipped
    assert dataclasses.replace(STEP, updated=False).skipped


def test_str_of_an_update_is_the_line_people_know() -> None:
    # the documented example
    assert str(STEP) == "[step 199] loss=0.418 scale=65536 grad_norm=0.93 lr=3e-4"


def test_str_of_a_skip_says_so_and_why() -> None:
    skip = dataclasses.replace(
        STEP, updated=False, reason="non_finite", loss=math.nan, grad_norm=math.inf
    )
    expected = "[step 199] loss=nan scale=65536 grad_norm=inf lr=3e-4"
    assert str(skip) == f"{expected} skipped=True reason=non_finite"


def test_str_of_several_groups_lists_their_rates() -> None:
    assert str(dataclasses.replace(STEP, lr=[3e-4, 0.01])).endswith(" lr=3e-4,0.01")


@pytest.mark.parametrize(
    ("exponent", "text"), [(24, "16777216"), (0, "1"), (-2, "0.25")], ids=["large", "one", "below"]
)
def test_str_spells_a_scale_in_full(exponent: int, text: str) -> None:
    assert f" scale={text} " in str(dataclasses.replace(STEP, loss_scale=2.0**exponent))


# three significant digits, the shorter spelling, no exponent sign or leading zero
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.4182, "0.418"),
        (0.93, "0.93"),
        (1.0, "1"),
        (12.34, "12.3"),
        (999.4, "999"),
        (999.6, "1000"),
        (2048.0, "2048"),
        (0.01, "0.01"),
        (0.00999, "9.99e-3"),
        (3e-4, "3e-4"),
        (-3e-4, "-3e-4"),
        (1.23456e-7, "1.23e-7"),
        (1e5, "1e5"),
        (1.5e6, "1.5e6"),
        (6.02e23, "6.02e23"),
        (1e300, "1e300"),
        (5e-324, "4.94e-324"),
        (0.0, "0"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (math.nan, "nan"),
    ],
)
def test_format_number_of_a_table_row_is_its_spelling(value: float, text: str) -> None:
    assert format_number(value) == text


@settings(deadline=None, derandomize=True)
@given(st.floats(min_value=-1e308, max_value=1e308))
def test_format_number_of_any_float_reads_back_within_its_digits(value: float) -> None:
    text = format_number(value)
    assert "+" not in text
    # half a unit in the third digit, and float64's own rounding
    assert abs(float(text) - value) <= 0.005 * abs(value) * (1 + 2.0**-50) + 5e-324
