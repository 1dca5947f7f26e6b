"""`fit`: determinism, data order, how a run ends, and what it refuses."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from small_recipes import SMALL, Batch, data, nan_from, sgd, small, watched
from torch import nn

import halfstep as hs
from halfstep.training.fit import to_device

FORMATS = ["fp32", "bf16", "fp16"]


@pytest.mark.parametrize("precision", FORMATS)
def test_fit_with_one_seed_gives_bit_equal_records(precision: str) -> None:
    runs = [hs.fit(SMALL, precision=precision, steps=20, accumulate=2, seed=7) for _ in range(2)]
    # as plain data, in which NaN (the norm of a skipped FP16 window) equals itself
    assert runs[0].to_dict()["steps"] == runs[1].to_dict()["steps"]
    assert runs[0].num_updates > 0


def test_fit_with_another_seed_starts_elsewhere() -> None:
    losses = {hs.fit(SMALL, precision="fp32", steps=1, seed=seed).steps[0].loss for seed in (0, 1)}
    assert len(losses) == 2


@pytest.mark.parametrize("precision", FORMATS)
def test_fit_in_any_format_sees_the_same_batches(precision: str) -> None:
    seen: list[Batch] = []
    hs.fit(watched(lambda _, batch: seen.append(batch)), precision=precision, steps=3)
    for batch, expected in zip(seen, data(3), strict=True):
        assert torch.equal(batch.x, expected.x)
        assert torch.equal(batch.y, expected.y)


@pytest.mark.parametrize(("steps", "accumulate"), [(7, 1), (3, 2), (2, 4)])
def test_fit_beyond_finite_batches_starts_again_in_order(steps: int, accumulate: int) -> None:
    seen: list[int] = []
    recipe = watched(lambda _, batch: seen.append(len(batch.x)))
    hs.fit(recipe, precision="fp32", steps=steps, accumulate=accumulate)
    assert seen == [4 + n % 3 for n in range(steps * accumulate)]  # sizes of the three batches


def test_fit_counts_the_divisors_of_whole_windows() -> None:
    run = hs.fit(SMALL, precision="fp32", steps=3, accumulate=2)
    # sizes 4 5 6 again and again, two by two
    assert [step.divisor for step in run.steps] == [9.0, 10.0, 11.0]
    assert [step.consumed for step in run.steps] == [9.0, 19.0, 30.0]


def test_fit_records_what_it_was_asked_for() -> None:
    run = hs.fit(SMALL, precision="fp16", steps=2, accumulate=3, max_norm=0.5, seed=4)
    assert run.settings == {"steps": 2, "accumulate": 3, "max_norm": 0.5, "seed": 4}
    assert (run.recipe, run.format, run.unit) == ("small", "fp16", "samples")
    assert (run.torch, run.status, len(run.steps)) == (torch.__version__, "finished", 2)


def test_fit_with_a_schedule_moves_the_rate_after_each_update() -> None:
    recipe = small(schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5))
    run = hs.fit(recipe, precision="fp32", steps=3)
    assert [step.lr for step in run.steps] == [[0.01], [0.005], [0.0025]]  # halves are exact


def test_on_step_gets_the_run_so_far_and_every_step_in_order() -> None:
    seen: list[tuple[int, int, bool]] = []

    def on_step(run: hs.RunRecord, step: hs.StepRecord) -> None:
        seen.append((step.step, len(run.steps), run.steps[-1] is step))

    hs.fit(SMALL, precision="fp32", steps=3, on_step=on_step)
    assert seen == [(1, 1, True), (2, 2, True), (3, 3, True)]


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


def test_clip_coef_is_torchs_formula() -> None:
    (step,) = hs.fit(SMALL, precision="fp32", steps=1, max_norm=1e-3).steps
    expected = 1e-3 / (step.grad_norm + 1e-6)  # torch.nn.utils.clip_grad_norm_
    assert abs(step.clip_coef / expected - 1) <= 8 * torch.finfo(torch.float32).eps


def test_to_device_moves_every_tensor_and_nothing_else() -> None:
    one = torch.ones(1)
    batch = {"pair": Batch(one, one), "list": [one, 3, "text"], "none": None}
    moved = to_device(batch, torch.device("meta"))
    assert isinstance(moved["pair"], Batch)
    assert [t.device.type for t in (*moved["pair"], moved["list"][0])] == ["meta"] * 3
    assert (moved["list"][1:], moved["none"]) == ([3, "text"], None)


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
        ({"model": lambda: None}, "Recipe.model must return a torch.nn.Module, got NoneType"),
        ({"optimizer": lambda model: 3}, "must be a torch.optim.Optimizer, got int"),
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
