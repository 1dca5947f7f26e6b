"""`Recipe`: what its fields may be."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from small_recipes import SMALL, small

import halfstep as hs


@pytest.mark.parametrize("field", ["model", "loss_fn", "batches", "optimizer"])
def test_recipe_field_that_is_no_function_is_refused(field: str) -> None:
    with pytest.raises(TypeError, match=rf"Recipe.{field} must be a function \(a factory.*got int"):
        small(**{field: 3})


@pytest.mark.parametrize("field", ["validate", "schedule"])
def test_recipe_field_that_may_be_missing_is_checked_too(field: str) -> None:
    assert getattr(SMALL, field) is None
    with pytest.raises(TypeError, match=rf"Recipe.{field} must be a function, got int"):
        small(**{field: 3})


def test_recipe_is_frozen() -> None:
    field = "name"
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'name'"):
        setattr(SMALL, field, "other")


def test_recipe_makes_a_fresh_model_for_every_run() -> None:
    first, second = (hs.fit(SMALL, precision="fp32", steps=2) for _ in range(2))
    assert [step.loss for step in first.steps] == [step.loss for step in second.steps]
    assert first.steps[0].loss != first.steps[1].loss


def test_recipe_with_a_module_for_its_model_is_refused() -> None:
    with pytest.raises(TypeError, match="pass a function that makes one"):
        hs.Recipe("r", torch.nn.Linear(2, 1), print, list, print)  # type: ignore[arg-type]
