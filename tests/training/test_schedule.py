"""Token schedules: the curve against its closed form, and when it moves."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_recipes import SMALL, nan_from, small
from torch import nn

import halfstep as hs

EPS = torch.finfo(torch.float64).eps


# worked out by hand from the formula in the docstring; cos(pi / 4) = sqrt(1 / 2)
@pytest.mark.parametrize(
    ("consumed", "factor"),
    [
        (0, 0.01),
        (50, 0.01 + 0.99 / 2),
        (100, 1.0),
        (325, 0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2),
        (550, 0.55),
        (775, 0.1 + 0.9 * (1 - math.sqrt(0.5)) / 2),
        (1000, 0.1),
        (5000, 0.1),
    ],
)
def test_warmup_cosine_at_a_point_is_its_closed_form(consumed: int, factor: float) -> None:
    schedule = hs.warmup_cosine(total=1000, warmup=100, start=0.01, end=0.1)
    assert abs(schedule.factor(consumed) - factor) <= 4 * EPS


def test_warmup_cosine_without_warmup_starts_at_the_full_rate() -> None:
    assert hs.warmup_cosine(total=10).factor(0) == 1.0


@pytest.mark.parametrize("warmup", [0, 100])
def test_warmup_cosine_equals_torchs_cosine_after_the_warmup(warmup: int) -> None:
    optimizer = torch.optim.SGD([torch.ones(1)], lr=1.0)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50, eta_min=0.1)
    ours = hs.warmup_cosine(total=warmup + 50, warmup=warmup, end=0.1)
    for step in range(50):
        # torch works recursively: a rounding of its own at every step
        assert abs(ours.factor(warmup + step) - cosine.get_last_lr()[0]) <= 4 * (step + 1) * EPS
        optimizer.step()
        cosine.step()


@settings(deadline=None, derandomize=True)
@given(
    warmup=st.floats(0, 1e9),
    length=st.floats(1, 1e9),
    at=st.lists(st.floats(0, 3e9), min_size=2),
)
def test_warmup_cosine_rises_then_falls_and_stays_between_its_ends(
    warmup: float, length: float, at: list[float]
) -> None:
    schedule = hs.warmup_cosine(total=warmup + length, warmup=warmup, start=0.2, end=0.1)
    rising = [schedule.factor(x) for x in sorted(at) if x < warmup]
    falling = [schedule.factor(x) for x in sorted(at) if x >= warmup]
    assert all(a <= b + EPS for a, b in itertools.pairwise(rising))
    assert all(a + EPS >= b for a, b in itertools.pairwise(falling))
    assert all(0.2 <= factor <= 1 + EPS for factor in rising)
    assert all(0.1 <= factor <= 1 for factor in falling)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"total": 10, "warmup": 10}, "0 <= warmup < total, got warmup=10, total=10"),
        ({"total": 10, "warmup": -1}, "0 <= warmup < total, got warmup=-1, total=10"),
        ({"total": 0}, "0 <= warmup < total"),
        ({"total": math.inf}, "0 <= warmup < total.*total=inf"),
        ({"total": math.nan}, "0 <= warmup < total.*total=nan"),
        ({"total": 10, "warmup": math.nan}, "0 <= warmup < total.*warmup=nan"),
        ({"total": 10, "start": -0.1}, "start must be a factor between 0 and 1, got -0.1"),
        ({"total": 10, "start": math.nan}, "start must be a factor between 0 and 1, got nan"),
        ({"total": 10, "end": 1.5}, "end must be a factor between 0 and 1, got 1.5"),
    ],
    ids=str,
)
def test_warmup_cosine_with_a_bad_value_is_refused(arguments: dict[str, float], text: str) -> None:
    with pytest.raises(ValueError, match=text) as caught:
        hs.warmup_cosine(**arguments)
    assert isinstance(caught.value, hs.HalfstepError)


def test_token_schedule_of_no_function_is_refused() -> None:
    factor: Any = 0.5
    with pytest.raises(TypeError, match="needs a function of consumed tokens, got float"):
        hs.TokenSchedule(factor)


@pytest.mark.parametrize("as_tensor", [False, True])
def test_apply_scales_the_first_rate_of_every_group_again_and_again(as_tensor: bool) -> None:
    rates: list[Any] = [torch.tensor(0.5), torch.tensor(2.0)] if as_tensor else [0.5, 2.0]
    groups = [{"params": [torch.ones(1)], "lr": rate} for rate in rates]
    optimizer = torch.optim.SGD(groups, foreach=False)
    schedule = hs.TokenSchedule(lambda consumed: 0.5**consumed)
    for consumed in (1, 3, 2):  # from the first rate, not from the last
        schedule.apply(optimizer, consumed)
        found = [float(group["lr"]) for group in optimizer.param_groups]
        assert found == [0.5 * 0.5**consumed, 2.0 * 0.5**consumed]  # powers of two are exact
    if as_tensor:
        assert all(g["lr"] is r for g, r in zip(optimizer.param_groups, rates, strict=True))


def test_token_schedule_in_a_run_follows_the_clock_of_committed_updates() -> None:
    recipe = small(
        batches=nan_from(2), schedule=lambda _: hs.TokenSchedule(lambda consumed: 1 + consumed)
    )
    run = hs.fit(recipe, precision="fp32", steps=4)
    # batches of 4, 5, 6, 4; the last two hold NaN and move nothing
    assert [step.lr for step in run.steps] == [[0.01 * n] for n in (1.0, 5.0, 10.0, 10.0)]
    assert [step.consumed for step in run.steps] == [4.0, 9.0, 9.0, 9.0]


def test_torch_scheduler_in_a_run_is_held_on_a_skip() -> None:
    recipe = small(
        batches=nan_from(2),
        schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5),
    )
    run = hs.fit(recipe, precision="fp32", steps=4)
    assert [step.lr for step in run.steps] == [[0.01], [0.005], [0.0025], [0.0025]]


def test_token_schedule_with_a_mean_loss_is_refused() -> None:
    recipe = small(
        loss_fn=lambda model, batch: model(batch.x).mean(),
        schedule=lambda _: hs.warmup_cosine(total=100),
    )
    with pytest.raises(TypeError, match=r"how many tokens .* return hs.LossSum\(total, divisor\)"):
        hs.fit(recipe, precision="fp32", steps=1)


def test_plateau_scheduler_is_refused_with_the_place_for_it() -> None:
    recipe = small(schedule=torch.optim.lr_scheduler.ReduceLROnPlateau)
    with pytest.raises(TypeError, match=r"ReduceLROnPlateau, whose step.* needs a metric; keep it"):
        hs.fit(recipe, precision="fp32", steps=1)


def test_scheduler_of_another_optimizer_is_refused() -> None:
    other = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)
    recipe = small(schedule=lambda _: torch.optim.lr_scheduler.StepLR(other, 1))
    with pytest.raises(ValueError, match="belongs to another optimizer"):
        hs.fit(recipe, precision="fp32", steps=1)


def test_run_without_a_schedule_keeps_its_rate() -> None:
    run = hs.fit(SMALL, precision="fp32", steps=2)
    assert [step.lr for step in run.steps] == [[0.01], [0.01]]


def test_engine_state_without_the_optimizers_sets_the_rate_before_the_first_step() -> None:
    # oracle: closed form, 0.5 at 0 consumed halved once per 4 consumed
    def engine() -> hs.Engine:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        schedule = hs.TokenSchedule(lambda consumed: 0.5 ** (consumed / 4))
        return hs.Engine(model, optimizer, precision="fp32", schedule=schedule)

    def loss_fn(model: nn.Module, x: torch.Tensor) -> hs.LossSum:
        return hs.LossSum(model(x).sum(), len(x))

    saved, loaded = engine(), engine()
    for _ in range(2):
        saved.train_step([torch.ones(4, 2)], loss_fn)
    loaded.load_state_dict(saved.state_dict())
    assert loaded.optimizer.param_groups[0]["lr"] == 0.125
    assert loaded.train_step([torch.ones(4, 2)], loss_fn).lr == 0.125
