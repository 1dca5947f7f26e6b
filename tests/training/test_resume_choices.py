"""A resume says which settings of the recipe its checkpoint overrides, and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim import lr_scheduler as torch_schedules

import halfstep as hs

Make = Callable[[Optimizer], Any]


def recipe(schedule: Make | None = None, optimizer: Any = None, **changes: Any) -> hs.Recipe:
    return hs.Recipe(
        name="mine",
        model=lambda: nn.Linear(4, 1),
        loss_fn=lambda model, batch: hs.LossSum(model(batch).float().square().sum(), len(batch)),
        batches=lambda: [torch.full((2, 4), float(n)) for n in range(5)],
        optimizer=optimizer or (lambda model: AdamW(model.parameters(), lr=0.01)),
        schedule=schedule,
        **changes,
    )


def warnings_of(
    before: hs.Recipe,
    after: hs.Recipe,
    folder: Path,
    caplog: pytest.LogCaptureFixture,
    precision: str = "fp32",
) -> list[str]:
    """What a resume of four steps of one recipe with another one says at warning level."""
    folders = hs.CheckpointFolder(folder, 4)
    hs.fit(before, precision=precision, steps=4, checkpoints=folders)
    caplog.clear()
    hs.fit(after, precision=precision, steps=6, resume=folder)
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


SCHEDULES: dict[str, Make] = {
    "token": lambda o: hs.warmup_cosine(100, warmup=4),
    "exponential": lambda o: torch_schedules.ExponentialLR(o, 0.5),
    "one cycle": lambda o: torch_schedules.OneCycleLR(o, 0.1, total_steps=10),
    "cyclic": lambda o: torch_schedules.CyclicLR(o, 0.001, 0.1, step_size_up=3),
    "restarts": lambda o: torch_schedules.CosineAnnealingWarmRestarts(o, 2, T_mult=2),
    "milestones": lambda o: torch_schedules.MultiStepLR(o, [2, 5]),
    "lambda": lambda o: torch_schedules.LambdaLR(o, lambda step: 0.5**step),
    "sequence": lambda o: torch_schedules.SequentialLR(
        o,
        [
            torch_schedules.LinearLR(o, 0.1, total_iters=3),
            torch_schedules.ExponentialLR(o, 0.9),
        ],
        milestones=[3],
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_resume_with_the_same_recipe_warns_of_nothing(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    same = recipe(SCHEDULES[name], ema=0.9, engine={"loss_scale": 64.0})
    assert warnings_of(same, same, tmp_path, caplog) == []


UNUSED = "the run goes on with {} of its checkpoint; the recipe's {} is not used."


@pytest.mark.parametrize(
    ("before", "after", "was", "now"),
    [
        (
            SCHEDULES["exponential"],
            lambda o: torch_schedules.ExponentialLR(o, 0.9),
            "gamma=0.5",
            "0.9",
        ),
        (
            SCHEDULES["one cycle"],
            lambda o: torch_schedules.OneCycleLR(o, 0.1, total_steps=20),
            "total_steps=10",
            "20",
        ),
        (
            SCHEDULES["sequence"],
            lambda o: torch_schedules.SequentialLR(
                o,
                [
                    torch_schedules.LinearLR(o, 0.1, total_iters=3),
                    torch_schedules.ExponentialLR(o, 0.8),
                ],
                milestones=[3],
            ),
            "schedulers[1].gamma=0.9",
            "0.8",
        ),
    ],
    ids=["gamma", "total_steps", "a part"],
)
def test_resume_with_another_setting_of_a_torch_schedule_says_so(
    before: Make,
    after: Make,
    was: str,
    now: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (said,) = warnings_of(recipe(before), recipe(after), tmp_path, caplog)
    assert said.startswith(UNUSED.format(was, now))


def test_resume_with_another_token_schedule_says_the_rates(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    halved = recipe(lambda o: hs.TokenSchedule(lambda consumed: 0.5))
    whole = recipe(lambda o: hs.TokenSchedule(lambda consumed: 1.0))
    (said,) = warnings_of(halved, whole, tmp_path, caplog)
    assert said.startswith("the recipe's schedule is another one")
    assert said.endswith("the run goes on at the rate 0.01, not 0.005")


@pytest.mark.parametrize(
    ("after", "was", "now"),
    [
        (lambda model: SGD(model.parameters(), lr=0.1, momentum=0.9), "momentum=0.5", "0.9"),
        (lambda model: SGD(model.parameters(), lr=0.2, momentum=0.5), "lr=0.1", "0.2"),
    ],
)
def test_resume_with_another_setting_of_the_optimizer_says_so(
    after: Any, was: str, now: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = recipe(optimizer=lambda model: SGD(model.parameters(), lr=0.1, momentum=0.5))
    (said,) = warnings_of(before, recipe(optimizer=after), tmp_path, caplog)
    assert said.startswith(UNUSED.format(was, now))


@pytest.mark.parametrize(
    ("before", "after", "was", "now"),
    [
        (1024.0, 2048.0, "loss_scale.scale=1024.0", "2048.0"),
        (
            hs.DynamicLossScale(growth_interval=3),
            hs.DynamicLossScale(growth_interval=5),
            "loss_scale.growth_interval=3",
            "5",
        ),
    ],
)
def test_resume_with_another_loss_scale_says_so(
    before: Any, after: Any, was: str, now: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recipes = (recipe(engine={"loss_scale": scale}) for scale in (before, after))
    (said,) = warnings_of(*recipes, tmp_path, caplog, precision="fp16")
    assert said.startswith(UNUSED.format(was, now))


def test_resume_with_another_decay_of_the_average_says_that_it_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (said,) = warnings_of(recipe(ema=0.9), recipe(ema=0.99), tmp_path, caplog)
    assert said == "the run was saved with the engine setting ema=0.9, and goes on with 0.99"
