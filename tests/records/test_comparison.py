"""The first step that differs, and by what."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from halfstep.records import Comparison, StepRecord, compare_steps


def step(number: int, **changes: Any) -> StepRecord:
    base = StepRecord(
        step=number,
        updated=True,
        reason=None,
        loss=1.0 / number,
        divisor=None,
        metrics={},
        grad_norm=0.5,
        clip_coef=1.0,
        loss_scale=8.0,
        next_loss_scale=8.0,
        lr=[0.1],
        consumed=0.0,
        batch=number - 1,
        checksum="aa",
    )
    return replace(base, **changes)


RUN = [step(n) for n in range(1, 6)]


def test_equal_runs_are_equal() -> None:
    found = compare_steps(RUN, list(RUN))
    assert found.is_equal
    assert str(found) == "equal in all 5 steps"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"batch": 9}, "batch"),
        ({"lr": [0.2]}, "lr"),
        ({"loss_scale": 4.0}, "loss_scale"),
        ({"updated": False}, "updated"),
        ({"grad_norm": 0.6}, "grad_norm"),
        ({"loss": math.nextafter(1 / 3, 1)}, "loss"),
        ({"checksum": "ab"}, "checksum"),
    ],
)
def test_first_difference_is_named_by_step_and_field(change: dict[str, Any], field: str) -> None:
    other = [*RUN[:2], step(3, **change), *(step(n, loss=9.0) for n in (4, 5))]
    found = compare_steps(RUN, other)
    assert (found.step, list(found.differences)) == (3, [field])
    assert str(found).startswith(f"step 3 differs first, by {field}: ")


def test_cause_is_named_before_its_consequences() -> None:
    other = [step(1, lr=[0.2], loss=2.0, checksum="zz"), *RUN[1:]]
    text = str(compare_steps(RUN, other))
    assert text == "step 1 differs first, by lr: 0.1 against 0.2 (also loss, checksum)"


def test_what_one_side_does_not_know_is_left_out() -> None:
    assert compare_steps(RUN, [replace(s, checksum=None, batch=None) for s in RUN]).is_equal


def test_batches_are_compared_by_content_where_both_know_it() -> None:
    left = [step(1, data="aa", batch=0)]
    assert compare_steps(left, [step(1, data="aa", batch=7)]).is_equal
    assert list(compare_steps(left, [step(1, batch=7)]).differences) == ["batch"]
    other = compare_steps(left, [step(1, data="bb", batch=7, grad_norm=0.6)])
    assert list(other.differences) == ["data", "grad_norm"]
    assert str(other) == (
        "step 1 differs first, by other data (checksum of the batches): aa against bb"
        " (also grad_norm)"
    )


def test_nan_equals_nan_and_not_a_number() -> None:
    nan = [step(1, loss=math.nan)]
    assert compare_steps(nan, [step(1, loss=math.nan)]).is_equal
    assert compare_steps(nan, [step(1)]).step == 1


def test_runs_of_different_length_are_not_equal() -> None:
    found = compare_steps(RUN, RUN[:3])
    assert not found.is_equal
    assert str(found) == "equal in the 3 steps that both have (5 and 3 steps)"


def test_json_round_trip_is_the_identity() -> None:
    found = compare_steps(RUN, [step(1, loss=math.inf), *RUN[1:]])
    text = json.dumps(found.to_dict(), allow_nan=False)
    assert Comparison.from_dict(json.loads(text)) == found
