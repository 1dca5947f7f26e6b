"""A falling loss scale, told apart from the search at the start (R32)."""

from __future__ import annotations

import pytest

from halfstep import StepRecord
from halfstep.training.run.scale_trend import ScaleTrend


def told(*steps: tuple[str | None, float, float]) -> list[str | None]:
    """What the trend says about each step of (reason, scale, next scale)."""
    trend = ScaleTrend()
    return [
        trend.note(
            StepRecord(
                step=number,
                updated=reason is None,
                reason=reason,  # type: ignore[arg-type]
                loss=1.0,
                divisor=None,
                metrics={},
                grad_norm=1.0,
                clip_coef=1.0,
                loss_scale=scale,
                next_loss_scale=next_scale,
                lr=[0.1],
                consumed=0.0,
            )
        )
        for number, (reason, scale, next_scale) in enumerate(steps, 1)
    ]


def falls(count: int) -> list[tuple[str | None, float, float]]:
    return [("non_finite", 2.0 ** (16 - n), 2.0 ** (15 - n)) for n in range(count)]


GOOD = (None, 65536.0, 65536.0)
EMPTY = ("empty_window", 65536.0, 65536.0)
STUCK = ("non_finite", 1.0, 1.0)


def test_updates_are_silent() -> None:
    assert told(*[GOOD] * 10) == [None] * 10


def test_three_skips_in_a_row_are_silent() -> None:
    assert told(GOOD, *falls(3)) == [None] * 4


def test_four_skips_after_an_update_say_fallen_and_what_to_check() -> None:
    message = told(GOOD, *falls(4))[-1]
    assert message is not None
    assert message.startswith("step 5: the loss scale has fallen 4 times in a row, to 4096;")
    assert message.find("Check this batch") < message.find("activations in FP32")  # data first
    assert "Check this batch" in message


def test_four_skips_before_the_first_update_are_the_search() -> None:
    message = told(*falls(4))[-1]
    assert message is not None
    assert message.startswith("step 4: 4 skips in a row while the loss scale searches from above")


@pytest.mark.parametrize("before", [[], [GOOD]], ids=["at the start", "later"])
def test_row_of_skips_is_told_once(before: list[tuple[str | None, float, float]]) -> None:
    messages = told(*before, *falls(12))
    assert [bool(message) for message in messages].count(True) == 1


def test_each_row_of_skips_is_told() -> None:
    messages = told(GOOD, *falls(5), GOOD, *falls(5))
    assert [n for n, message in enumerate(messages, 1) if message] == [5, 11]


def test_update_between_skips_starts_the_count_again() -> None:
    assert told(GOOD, *falls(3), GOOD, *falls(3)) == [None] * 8


def test_empty_windows_are_no_overflow() -> None:
    assert told(GOOD, *[EMPTY] * 10) == [None] * 11


def test_scale_that_does_not_fall_says_that_the_model_makes_it() -> None:
    message = told(GOOD, *[STUCK] * 4)[-1]
    assert message is not None
    assert message.startswith("step 5: 4 non-finite windows in a row at a loss scale that does not")
    assert "not fall (1); the model makes inf or NaN by itself" in message


def test_scale_that_fell_once_in_four_skips_is_not_called_fallen_four_times() -> None:
    held = ("non_finite", 65536.0, 65536.0)  # hysteresis=4: three skips without a back-off
    message = told(GOOD, held, held, held, ("non_finite", 65536.0, 32768.0))[-1]
    assert message is None or "fallen 4 times" not in message


def test_scale_that_never_fell_at_the_start_is_said_not_to_fall() -> None:
    *_, last = told(*[("non_finite", 8.0, 8.0)] * 4)
    assert last is not None
    assert "at a loss scale that does not fall (8)" in last
