"""The dynamic scale against its pseudo-code in plain Python."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import halfstep as hs
from halfstep.update import as_loss_scale

GOOD, BAD = torch.tensor(0.0), torch.tensor(1.0)


class PlainScale:
    """Oracle: the documented algorithm, in floats."""

    def __init__(self, init: float, interval: int, low: float, high: float, hysteresis: int):
        self.scale, self.interval, self.low, self.high = init, interval, low, high
        self.hysteresis, self.good, self.skips = hysteresis, 0, 0

    def update(self, bad: bool) -> None:
        if bad:
            self.good, self.skips = 0, self.skips + 1
            if self.skips >= self.hysteresis:
                self.scale = max(self.low, self.scale * 0.5)
            return
        self.good += 1
        if self.good >= self.interval:
            self.good = self.skips = 0
            self.scale = min(self.high, self.scale * 2.0)


@settings(max_examples=150, deadline=None)
@given(
    history=st.lists(st.booleans(), max_size=60),
    interval=st.integers(1, 4),
    low=st.integers(-3, 8),
    high=st.integers(8, 20),
    hysteresis=st.integers(1, 3),
)
def test_dynamic_scale_follows_its_pseudo_code(
    history: list[bool], interval: int, low: int, high: int, hysteresis: int
) -> None:
    scale = hs.DynamicLossScale(
        2.0**8,
        growth_interval=interval,
        min_scale=2.0**low,
        max_scale=2.0**high,
        hysteresis=hysteresis,
        max_consecutive_skips=100,
    )
    plain = PlainScale(2.0**8, interval, 2.0**low, 2.0**high, hysteresis)
    for bad in history:
        scale.update(BAD if bad else GOOD)
        plain.update(bad)
        assert float(scale.value) == plain.scale
        assert 2.0**low <= float(scale.value) <= 2.0**high


@given(history=st.lists(st.booleans(), max_size=40))
def test_dynamic_scale_without_reached_bounds_equals_torch(history: list[bool]) -> None:
    # oracle: torch.amp.GradScaler's kernel
    scale = hs.DynamicLossScale(2.0**10, growth_interval=3, min_scale=2.0**-100, max_scale=2.0**100)
    expected, tracker = torch.tensor(2.0**10), torch.tensor(0, dtype=torch.int32)
    for bad in history:
        found = BAD if bad else GOOD
        scale.update(found)
        torch._amp_update_scale_(expected, tracker, found, 2.0, 0.5, 3)
        assert float(scale.value) == float(expected)


def test_dynamic_scale_after_144_bad_windows_stands_on_its_floor() -> None:
    # torch: 2^-128 after 144, where 1/scale is inf; exactly 0 after 166
    stock, tracker = torch.tensor(2.0**16), torch.tensor(0, dtype=torch.int32)
    scale = hs.DynamicLossScale(max_consecutive_skips=1000)
    for _ in range(166):
        torch._amp_update_scale_(stock, tracker, BAD, 2.0, 0.5, 2000)
        scale.update(BAD)
    assert float(stock) == 0.0
    assert float(scale.value) == 1.0


def test_growth_interval_lowered_below_the_tracker_still_grows() -> None:
    # torch tests for equality and never grows again
    stock, tracker = torch.tensor(8.0), torch.tensor(0, dtype=torch.int32)
    scale = hs.DynamicLossScale(8.0, growth_interval=100)
    for _ in range(10):
        torch._amp_update_scale_(stock, tracker, GOOD, 2.0, 0.5, 100)
        scale.update(GOOD)
    scale.growth_interval = 5
    for _ in range(3):
        torch._amp_update_scale_(stock, tracker, GOOD, 2.0, 0.5, 5)
        scale.update(GOOD)
    assert float(stock) == 8.0
    assert float(scale.value) == 16.0


@pytest.mark.parametrize(
    "make", [hs.NoLossScale, lambda: hs.StaticLossScale(8.0), hs.DynamicLossScale]
)
def test_any_scale_raises_after_too_many_skips_in_a_row(make: Any) -> None:
    scale = make()
    scale.max_consecutive_skips = 3
    for found in (BAD, BAD, GOOD, BAD, BAD):
        scale.update(found)
    with pytest.raises(hs.ScaleCollapse, match="3 updates in a row were skipped"):
        scale.update(BAD)


def test_collapse_tells_where_the_scale_went() -> None:
    scale = hs.DynamicLossScale(2.0**16, max_consecutive_skips=4)
    for _ in range(3):
        scale.update(BAD)
    with pytest.raises(hs.ScaleCollapse, match="from 65536 to 8192"):
        scale.update(BAD)


def test_scale_of_a_half_precision_loss_is_computed_in_fp32() -> None:
    # 2 * 65536 is inf in FP16; torch leaves a one-element loss in FP16
    loss = torch.tensor([2.0], dtype=torch.float16)
    stock = torch.amp.GradScaler("cpu")
    assert math.isinf(stock.scale(loss).item())
    scaled = hs.DynamicLossScale().scale(loss)
    assert (scaled.item(), scaled.dtype) == (131072.0, torch.float32)


def test_state_with_no_default_value_survives_the_round_trip() -> None:
    first = hs.DynamicLossScale(
        2.0**5,
        3.0,
        0.25,
        7,
        min_scale=0.5,
        max_scale=2.0**20,
        hysteresis=2,
        max_consecutive_skips=9,
    )
    for found in (GOOD, GOOD, BAD):
        first.update(found)
    second = hs.DynamicLossScale()
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == first.state_dict()
    for found in (GOOD, BAD, BAD, GOOD):
        first.update(found)
        second.update(found)
        assert float(first.value) == float(second.value)


def test_state_of_torchs_scaler_loads_and_goes_back() -> None:
    stock = torch.amp.GradScaler("cpu", init_scale=2.0**9, growth_interval=5)
    stock.scale(torch.ones(()))
    stock._growth_tracker.fill_(3)  # type: ignore[union-attr]
    scale = hs.DynamicLossScale()
    scale.load_state_dict(stock.state_dict())
    assert (float(scale.value), scale.growth_interval) == (512.0, 5)
    scale.update(GOOD)
    scale.update(GOOD)
    assert float(scale.value) == 1024.0
    stock.load_state_dict(scale.state_dict())
    assert stock.get_scale() == 1024.0


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, "disabled torch GradScaler"),
        ({"scale": 0.0}, "positive and finite"),
        ({"scale": math.nan}, "positive and finite"),
        ({"scale": 8.0, "growth_factor": 0.5}, "must be > 1"),
    ],
)
def test_state_that_cannot_be_is_refused_and_changes_nothing(
    state: dict[str, float], message: str
) -> None:
    scale = hs.DynamicLossScale()
    before = scale.state_dict()
    with pytest.raises(hs.HalfstepError, match=message):
        scale.load_state_dict(state)
    assert scale.state_dict() == before


def test_state_outside_the_bounds_is_brought_inside_with_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scale = hs.DynamicLossScale()
    scale.load_state_dict({"scale": 2.0**-20})
    assert float(scale.value) == 1.0
    assert "was brought inside" in caplog.text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"growth_factor": 0.5}, r"growth_factor must be > 1, got 0.5"),
        ({"growth_factor": math.inf}, "growth_factor must be > 1"),
        ({"backoff_factor": 1.0}, "backoff_factor must be between 0 and 1"),
        ({"growth_interval": 1.5}, "growth_interval must be a whole number of at least 1, got 1.5"),
        ({"growth_interval": 0}, "growth_interval must be a whole number of at least 1"),
        ({"hysteresis": 0}, "hysteresis must be a whole number of at least 1"),
        ({"min_scale": 0.0}, "min_scale must be positive"),
        ({"max_scale": math.inf}, "max_scale must be positive and finite"),
        ({"init_scale": math.nan}, "init_scale must be positive and finite"),
        ({"init_scale": 0.25}, "init_scale must be inside"),
        ({"max_consecutive_skips": 0}, "max_consecutive_skips must be a whole number"),
    ],
)
def test_dynamic_scale_refuses_settings_that_cannot_work(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        hs.DynamicLossScale(**settings)


def test_loss_scale_setting_makes_the_object_that_fits() -> None:
    assert isinstance(as_loss_scale("auto", "fp16"), hs.DynamicLossScale)
    assert isinstance(as_loss_scale("auto", "bf16"), hs.NoLossScale)
    assert isinstance(as_loss_scale(None, "fp16"), hs.NoLossScale)
    assert float(as_loss_scale(128, "fp16").value) == 128.0
    own = hs.StaticLossScale(4.0)
    assert as_loss_scale(own, "fp16") is own


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("dynamic", "'auto', None, a number"),
        (math.inf, "positive and finite"),
        (-1.0, "positive"),
        (torch.amp.GradScaler("cpu"), "GradScaler's state loads"),
        (True, "got bool"),
    ],
)
def test_loss_scale_setting_of_another_kind_is_refused(spec: Any, message: str) -> None:
    with pytest.raises(hs.HalfstepError, match=message):
        as_loss_scale(spec, "fp16")


def test_state_of_a_run_without_a_scale_does_not_become_a_scale_of_one() -> None:
    # a BF16 run's checkpoint in FP16: 2^16 would take 16 times 2,000 windows to come back
    for other in (hs.NoLossScale(), hs.StaticLossScale(8.0)):
        with pytest.raises(ValueError, match="leave this state out"):
            hs.DynamicLossScale().load_state_dict(other.state_dict())


def test_scale_named_in_a_message_is_the_argument_that_was_given() -> None:
    with pytest.raises(ValueError, match=r"^scale must be positive"):
        hs.StaticLossScale(0.0)
    with pytest.raises(ValueError, match=r"^loss_scale must be positive"):
        as_loss_scale(0, "fp16")


@pytest.mark.parametrize("scale", [2.0, 8.0])
def test_state_at_a_bound_loads_without_a_word(
    scale: float, caplog: pytest.LogCaptureFixture
) -> None:
    here = hs.DynamicLossScale(4.0, min_scale=2.0, max_scale=8.0)
    with caplog.at_level(logging.WARNING, "halfstep"):
        here.load_state_dict({**here.state_dict(), "scale": scale})
    assert float(here.value) == scale
    assert not caplog.records
