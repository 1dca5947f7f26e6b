"""`fit`: how a run ends early, and what it refuses to start."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from small_recipes import SMALL, nan_from, sgd, small, watched
from torch import nn

import halfstep as hs

FORMATS = ["fp32", "bf16", "fp16"]


def interrupt_at(call: int) -> Any:
    calls = iter(range(1, 1_000_000))

    def look(*_: object) -> None:
        if next(calls) == call:
            raise KeyboardInterrupt

    return look


def test_interrupt_inside_the_loss_keeps_the_steps_made() -> None:
    recipe = watched(interrupt_at(4), validate=lambda model: 1.0)
    run = hs.fit(recipe, precision="fp32", steps=10)
    assert (run.status, [step.step for step in run.steps]) == ("interrupted", [1, 2, 3])
    assert (run.initial_validation, run.validation) == ({"validation": 1.0}, {})


def test_interrupt_inside_a_window_drops_the_window() -> None:
    recipe = watched(interrupt_at(4))
    run = hs.fit(recipe, precision="fp32", steps=10, accumulate=2)
    assert [step.step for step in run.steps] == [1]


@pytest.mark.parametrize("call", [1, 3])
def test_interrupt_inside_on_step_records_no_step_twice_and_loses_none(call: int) -> None:
    made: list[int] = []
    recipe = watched(lambda *_: made.append(len(made) + 1))
    run = hs.fit(recipe, precision="fp32", steps=10, on_step=interrupt_at(call))
    assert (run.status, [step.step for step in run.steps]) == ("interrupted", made)


def test_error_of_the_user_passes_after_the_steps_made_were_reported() -> None:
    seen: list[int] = []

    def look(*_: object) -> None:
        if len(calls) == 3:
            raise ZeroDivisionError("the user's")
        calls.append(0)

    calls: list[int] = []
    with pytest.raises(ZeroDivisionError, match="the user's"):
        hs.fit(watched(look), precision="fp32", steps=9, on_step=lambda _, s: seen.append(s.step))
    assert seen == [1, 2, 3]


@pytest.mark.parametrize("precision", FORMATS)
def test_collapse_ends_the_run_with_every_attempt_in_the_record(
    precision: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = hs.fit(small(batches=nan_from(0)), precision=precision, steps=200)
    # 50 skips in a row is the documented limit of every loss scale
    assert run.status == "collapsed"
    assert [step.step for step in run.steps] == list(range(1, 51))
    assert "50 updates in a row were skipped" in caplog.text


def test_falling_scale_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    hs.fit(small(batches=nan_from(30)), precision="fp16", steps=40)
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert warnings[0].startswith("step 34: the loss scale has fallen 4 times in a row")


@pytest.mark.parametrize("setting", ["steps", "accumulate"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "3"])
def test_count_that_is_no_positive_whole_number_is_refused(setting: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{setting} must be a whole number of at least 1, got"):
        hs.fit(SMALL, **{setting: value})


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"precision": "fp12"}, "precision must be .*got 'fp12'"),
        ({"max_norm": 0.0}, "max_norm must be > 0, got 0.0"),
        ({"max_norm": float("nan")}, "max_norm must be > 0, got nan"),
        ({"device": "nonsense"}, "device.*nonsense"),
        ({"seed": -1}, "seed must be a whole number .*got -1"),
        ({"seed": 2**64}, "seed must be a whole number"),
        ({"device": "cuda:4096"}, "device.*cuda:4096"),
    ],
    ids=str,
)
def test_bad_setting_is_refused_in_a_sentence_of_ours(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(hs.HalfstepError, match=text):
        hs.fit(SMALL, **settings)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"batches": list}, r"batches\(\) of recipe 'small' yields nothing"),
        ({"model": lambda: None}, "Recipe.model must return a torch.nn.Module, .* got NoneType"),
        ({"optimizer": lambda model: 3}, "must be a torch.optim.Optimizer, or a mapping.*got int"),
        ({"optimizer": lambda model: sgd(nn.Linear(2, 1))}, "not the model's"),
        ({"schedule": lambda optimizer: 3}, "schedule must be .*got int"),
        ({"validate": lambda model: "good"}, "validate.*str"),
        ({"validate": lambda model: {"loss": None}}, "validate.*NoneType"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_factory_that_returns_nothing_usable_is_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(hs.HalfstepError, match=text):
        hs.fit(small(**changes), precision="fp32", steps=1)


def test_fit_logs_what_the_replay_of_a_skipped_step_found(
    caplog: pytest.LogCaptureFixture,
) -> None:
    recipe = hs.Recipe(
        "overflows",
        lambda: torch.nn.Linear(4, 1),
        lambda model, batch: model(batch).float().mean() * 1e30,
        lambda: [torch.ones(2, 4)],
        lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    )
    with caplog.at_level(logging.WARNING, "halfstep"):
        run = hs.fit(recipe, precision="fp16", steps=1, diagnose="on_skip", device="cpu")
    assert run.steps[0].diagnosis is not None
    assert f"step 1 skipped: {run.steps[0].diagnosis}" in caplog.text
