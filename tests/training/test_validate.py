"""Validation inside `fit`: mode, gradients, autocast, names."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_recipes import SMALL, model_with_dropout, small, watched
from torch import nn

import halfstep as hs

TORCH_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def test_validate_runs_in_eval_mode_without_gradients_before_and_after() -> None:
    seen: list[tuple[bool, bool]] = []

    def validate(model: nn.Module) -> float:
        seen.append((model.training, torch.is_grad_enabled()))
        return 0.0

    hs.fit(small(validate=validate), precision="fp32", steps=2)
    assert seen == [(False, False)] * 2


@pytest.mark.parametrize("precision", TORCH_DTYPES)
def test_validate_runs_in_the_format_of_the_run(precision: str) -> None:
    seen: list[torch.dtype] = []

    def validate(model: nn.Module) -> float:
        seen.append(model(torch.ones(1, 4)).dtype)
        return 0.0

    hs.fit(small(validate=validate), precision=precision, steps=1)
    assert seen == [TORCH_DTYPES[precision]] * 2


def test_validate_leaves_the_model_in_training_mode() -> None:
    models: list[nn.Module] = []
    modes: list[bool] = []

    def model() -> nn.Module:
        models.append(model_with_dropout())
        return models[-1]

    recipe = watched(lambda m, _: modes.append(m.training), model=model, validate=lambda m: 0.0)
    hs.fit(recipe, precision="fp32", steps=2)
    assert modes == [True, True]
    assert all(module.training for module in models[0].modules())


def test_validate_that_fails_leaves_the_model_in_training_mode() -> None:
    models: list[nn.Module] = []

    def validate(model: nn.Module) -> float:
        models.append(model)
        raise ZeroDivisionError("the user's")

    with pytest.raises(ZeroDivisionError, match="the user's"):
        hs.fit(small(validate=validate), precision="fp32", steps=1)
    assert models[0].training
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (2, {"validation": 2.0}),
        (torch.tensor(0.5), {"validation": 0.5}),
        ({"loss": torch.tensor(0.5), "hits": 3}, {"loss": 0.5, "hits": 3.0}),
        ({}, {}),
    ],
    ids=str,
)
def test_validate_result_is_recorded_by_name(returned: Any, expected: dict[str, float]) -> None:
    run = hs.fit(small(validate=lambda model: returned), precision="fp32", steps=1)
    assert run.initial_validation == expected
    assert run.validation == expected


def test_recipe_without_validate_has_no_results() -> None:
    run = hs.fit(SMALL, precision="fp32", steps=1)
    assert (run.initial_validation, run.validation) == ({}, {})


def test_validate_sees_the_first_and_the_last_weights() -> None:
    recipe = small(validate=lambda model: float(model[0].weight.detach().sum()))
    run = hs.fit(recipe, precision="fp32", steps=3)
    torch.manual_seed(0)
    fresh = model_with_dropout()
    assert isinstance(fresh, nn.Sequential)
    assert run.initial_validation["validation"] == float(fresh[0].weight.detach().sum())
    assert run.validation != run.initial_validation


def test_validation_of_an_average_has_a_name_of_its_own() -> None:
    recipe = hs.Recipe(
        "averaged",
        lambda: torch.nn.Linear(4, 1),
        lambda model, batch: model(batch).float().mean(),
        lambda: [torch.ones(2, 4)],
        lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        validate=lambda model: {"bias": float(model.bias)},
        ema=0.5,
    )
    run = hs.fit(recipe, precision="fp32", steps=2, device="cpu")
    # closed form: the bias falls by 0.1 twice; the average is its first value after step 1, then
    # the mean of both
    assert run.validation.keys() == {"bias", "averaged_bias"}
    assert run.validation["averaged_bias"] - run.validation["bias"] == pytest.approx(0.05)


def test_fit_on_the_meta_device_is_refused() -> None:
    recipe = hs.Recipe(
        "meta",
        lambda: torch.nn.Linear(4, 1),
        lambda model, batch: model(batch).float().mean(),
        lambda: [torch.ones(2, 4)],
        lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    )
    with pytest.raises(hs.BadValueError, match="cannot use device 'meta': it holds no numbers"):
        hs.fit(recipe, precision="fp32", steps=1, device="meta")
