"""Validation every so many steps, the best checkpoint, early stopping."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_recipes import SMALL, small, watched
from torch import nn

import halfstep as hs
from halfstep.records import Validation
from halfstep.training.checkpoint.file import read_checkpoint

SETTINGS: dict[str, Any] = {"precision": "fp32", "device": "cpu"}


def plain(run: hs.RunRecord) -> list[dict[str, Any]]:
    return [step.to_dict() for step in run.steps]


def returning(*values: float) -> Callable[[nn.Module], float]:
    """A validation that returns one value after the other; the first is before training."""
    left: Iterator[float] = iter(values)
    return lambda model: next(left)


def weight(model: nn.Module) -> float:
    return float(next(model.parameters()).detach().sum())


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1))


def reckless(model: nn.Module) -> float:
    """Draws from every generator, trains the statistics, and leaves modes as it likes."""
    torch.rand(3), random.random(), np.random.rand()
    model.train()
    model(torch.full((5, 4), 1e3))
    return 0.0


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_training_is_bit_for_bit_the_same_with_and_without_validation(precision: str) -> None:
    settings: dict[str, Any] = {"precision": precision, "steps": 7, "checksums": True, "seed": 3}
    alone = hs.fit(small(model=normed), **settings)
    recipe = small(model=normed, validate=reckless, ema=0.9)
    validated = hs.fit(recipe, validate_every=2, **settings)
    averaged = hs.fit(small(model=normed, ema=0.9), **settings)
    assert str([step.loss for step in validated.steps]) == str([step.loss for step in alone.steps])
    assert plain(validated) == plain(averaged)  # checksums hold buffers and averages


def test_validations_are_recorded_with_their_steps_and_the_last_one_is_the_result() -> None:
    recipe = small(validate=weight)
    run = hs.fit(recipe, steps=5, validate_every=2, **SETTINGS)
    assert [one.step for one in run.validations] == [2, 4, 5]
    for one in run.validations:  # a run that ends there is the oracle
        alone = hs.fit(recipe, steps=one.step, **SETTINGS)
        assert one.metrics == alone.validation
    assert run.validation == run.validations[-1].metrics
    assert run.settings["validate_every"] == 2


def test_last_step_is_validated_once() -> None:
    seen: list[int] = []
    recipe = small(validate=lambda model: float(len(seen) + (seen.append(1) or 0)))  # type: ignore[func-returns-value]
    run = hs.fit(recipe, steps=4, validate_every=2, **SETTINGS)
    assert len(seen) == 3  # before, after step 2, after step 4
    assert [one.metrics["validation"] for one in run.validations] == [1.0, 2.0]


def test_run_without_validate_every_has_no_validations() -> None:
    run = hs.fit(small(validate=weight), steps=4, **SETTINGS)
    assert run.validations == []
    assert "validate_every" not in run.settings


def test_modules_frozen_in_eval_mode_stay_so_around_validations() -> None:
    seen: list[tuple[bool, bool]] = []

    def frozen() -> nn.Module:
        model = normed()
        model[1].eval()  # type: ignore[index]
        return model

    recipe = watched(
        lambda m, _: seen.append((m.training, m[1].training)),  # type: ignore[index]
        model=frozen,
        validate=reckless,
    )
    hs.fit(recipe, steps=3, validate_every=1, **SETTINGS)
    assert seen == [(True, False)] * 3


def test_model_that_comes_in_eval_mode_is_trained_in_training_mode() -> None:
    seen: list[bool] = []
    recipe = watched(
        lambda m, _: seen.append(all(part.training for part in m.modules())),
        model=lambda: normed().eval(),
        validate=weight,
    )
    hs.fit(recipe, steps=2, validate_every=1, **SETTINGS)
    assert seen == [True, True]


def test_time_of_a_validation_is_not_time_of_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("halfstep.training.run.loop.time.perf_counter", lambda: now[0])

    def slow(model: nn.Module) -> float:
        now[0] += 100.0
        return 0.0

    def step(*_: object) -> None:
        now[0] += 1.0

    run = hs.fit(watched(step, validate=slow), steps=4, validate_every=1, **SETTINGS)
    assert run.duration_s == 4.0


@pytest.mark.parametrize(
    ("direction", "best"), [("min", 3), ("max", 1)], ids=["smallest", "largest"]
)
def test_best_checkpoint_is_that_of_the_best_validation(
    direction: Any, best: int, tmp_path: Path
) -> None:
    recipe = small(validate=returning(-9.0, 5.0, math.nan, 1.0, 1.0, 2.0))
    hs.fit(
        recipe,
        steps=5,
        validate_every=1,
        keep_best=hs.Best("validation", direction),
        checkpoints=hs.CheckpointFolder(tmp_path, every=1, keep=1),
        **SETTINGS,
    )
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == ["best.pt", "step-00000005.pt"]
    content = read_checkpoint(tmp_path / "best.pt")
    assert len(content["extra"]["run"]["steps"]) == best
    hs.fit(SMALL, steps=best, checkpoints=hs.CheckpointFolder(tmp_path / "alone", best), **SETTINGS)
    alone = read_checkpoint(tmp_path / "alone" / f"step-{best:08d}.pt")
    for name, value in alone["model"]["model"].items():
        assert torch.equal(content["model"]["model"][name], value)


def test_best_value_survives_a_resume(tmp_path: Path) -> None:
    """The best value is at step 1; after the resume at 3 nothing better comes."""
    common: dict[str, Any] = {
        "validate_every": 1,
        "keep_best": hs.Best(),
        "checkpoints": hs.CheckpointFolder(tmp_path, 3),
        **SETTINGS,
    }
    hs.fit(small(validate=returning(9.0, 1.0, 3.0, 2.0)), steps=3, **common)
    before = (tmp_path / "best.pt").stat().st_mtime_ns
    path = tmp_path / "step-00000003.pt"
    run = hs.fit(small(validate=returning(2.0, 1.5)), steps=5, resume=path, **common)
    assert [one.metrics["validation"] for one in run.validations] == [1.0, 3.0, 2.0, 2.0, 1.5]
    assert (tmp_path / "best.pt").stat().st_mtime_ns == before
    better = hs.fit(small(validate=returning(2.0, 0.5)), steps=5, resume=path, **common)
    assert better.validations[-1].metrics == {"validation": 0.5}
    assert len(read_checkpoint(tmp_path / "best.pt")["extra"]["run"]["steps"]) == 5


def test_run_resumed_from_its_best_checkpoint_is_the_straight_run(tmp_path: Path) -> None:
    common: dict[str, Any] = {"validate_every": 2, "checksums": True, **SETTINGS}
    recipe = small(validate=weight)
    straight = hs.fit(
        recipe,
        steps=7,
        keep_best=hs.Best(direction="max"),
        checkpoints=hs.CheckpointFolder(tmp_path, 100),
        **common,
    )
    resumed = hs.fit(recipe, steps=7, resume=tmp_path / "best.pt", **common)
    assert plain(resumed) == plain(straight)
    assert resumed.validations == straight.validations


def test_patience_stops_after_as_many_validations_without_a_better_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    recipe = small(validate=returning(0.0, 5.0, 4.0, 4.0, math.nan, 3.0))
    with caplog.at_level(logging.INFO, "halfstep"):
        run = hs.fit(recipe, steps=40, validate_every=2, stop=hs.patience(2), **SETTINGS)
    assert (run.status, len(run.steps)) == ("stopped", 8)
    assert [one.step for one in run.validations] == [2, 4, 6, 8]
    assert "stopped after step 8 of 40" in caplog.text


def test_patience_by_the_largest_value_goes_on_while_it_grows() -> None:
    recipe = small(validate=lambda model: {"accuracy": next(values)})
    values = iter([0.0, 0.1, 0.2, 0.3, 0.3, 0.2])
    rule = hs.patience(1, "accuracy", "max")
    run = hs.fit(recipe, steps=9, validate_every=1, stop=rule, **SETTINGS)
    assert (run.status, len(run.steps)) == ("stopped", 4)


def test_stop_at_the_last_step_is_a_run_that_finished() -> None:
    recipe = small(validate=returning(0.0, 1.0, 2.0))
    run = hs.fit(recipe, steps=2, validate_every=1, stop=hs.patience(1), **SETTINGS)
    assert (run.status, len(run.steps)) == ("finished", 2)


def test_stop_without_validations_is_asked_after_every_step() -> None:
    seen: list[int] = []

    def stop(run: hs.RunRecord) -> bool:
        seen.append(len(run.steps))
        return len(run.steps) == 3

    run = hs.fit(SMALL, steps=9, stop=stop, **SETTINGS)
    assert (run.status, seen, len(run.steps)) == ("stopped", [1, 2, 3], 3)


def test_stopped_run_is_validated_at_its_end() -> None:
    recipe = small(validate=weight)
    run = hs.fit(recipe, steps=9, stop=lambda run: len(run.steps) == 3, **SETTINGS)
    assert run.validation == hs.fit(recipe, steps=3, **SETTINGS).validation


def test_run_resumed_where_it_stopped_stops_again(tmp_path: Path) -> None:
    folder = hs.CheckpointFolder(tmp_path, 1)
    common: dict[str, Any] = {"steps": 9, "validate_every": 1, "stop": hs.patience(1), **SETTINGS}
    first = hs.fit(small(validate=returning(0.0, 1.0, 2.0)), checkpoints=folder, **common)
    again = hs.fit(small(validate=returning()), resume=tmp_path, **common)
    assert (first.status, again.status, len(again.steps)) == ("stopped", "stopped", 2)
    assert again.validations == first.validations


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"validate_every": 0}, "validate_every must be at least 1, got 0"),
        ({"validate_every": 1.5}, "validate_every must be a whole number, got 1.5"),
        ({"validate_every": True}, "validate_every must be a whole number, got True"),
        ({"keep_best": "val_loss"}, r'keep_best must be an hs.Best, such as hs.Best\("val_loss"'),
        ({"keep_best": hs.Best(), "validate_every": 1}, "keep_best needs checkpoints="),
        ({"stop": 3}, r"stop must be a function of the run record, .*patience\(3\), got int"),
        ({"stop": hs.patience(3)}, "patience needs validate_every"),
        (
            {"stop": hs.patience(3, "loss"), "validate_every": 1},
            "patience goes by the metric 'loss', the recipe's validation returns 'validation'",
        ),
    ],
    ids=str,
)
def test_setting_that_cannot_be_is_refused_before_the_first_step(
    settings: dict[str, Any], text: str
) -> None:
    seen: list[object] = []
    recipe = watched(lambda *_: seen.append(1), validate=lambda model: 0.0)
    with pytest.raises(hs.HalfstepError, match=text):
        hs.fit(recipe, steps=3, **settings, **SETTINGS)
    assert not seen


def test_keep_best_without_validations_or_with_another_name_is_refused(tmp_path: Path) -> None:
    folder = hs.CheckpointFolder(tmp_path, 1)
    with pytest.raises(hs.BadValueError, match="keep_best needs validate_every"):
        hs.fit(small(validate=weight), keep_best=hs.Best(), checkpoints=folder, **SETTINGS)
    with pytest.raises(hs.BadValueError, match="keep_best goes by the metric 'loss'"):
        hs.fit(
            small(validate=weight),
            keep_best=hs.Best("loss"),
            checkpoints=folder,
            validate_every=1,
            **SETTINGS,
        )
    assert not list(tmp_path.glob("*.pt"))


def test_validate_every_of_a_recipe_without_validate_is_refused() -> None:
    with pytest.raises(hs.BadValueError, match=r"needs Recipe\.validate; .*'small'"):
        hs.fit(SMALL, validate_every=1, **SETTINGS)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: hs.patience(0), "patience must be a whole number of at least 1, got 0"),
        (lambda: hs.patience(True), "patience must be a whole number"),
        (lambda: hs.Best("loss", "down"), '"min" or "max", got \'down\''),  # type: ignore[arg-type]
        (lambda: hs.Best(3), "metric must be the name of a metric, got int"),  # type: ignore[arg-type]
    ],
)
def test_rule_that_cannot_be_is_refused(make: Callable[[], object], text: str) -> None:
    with pytest.raises(hs.HalfstepError, match=text):
        make()


def test_best_of_no_number_is_none() -> None:
    assert hs.Best("loss").of([]) is None
    assert hs.Best("loss").of([Validation(1, {"loss": math.nan}), Validation(2, {})]) is None
    assert hs.Best("loss").of([Validation(1, {"loss": math.inf})]) is not None
