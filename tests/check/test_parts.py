"""Optimizers of parts of a model, and gradients of representations: silent where it is right."""

from __future__ import annotations

import pytest
from silent_parts import MORE, PARTS, program
from silent_representations import REPRESENTATIONS

from halfstep.check.linter import check_text
from halfstep.rules import registry

RULES = registry.select(["HS1"])


def errors(text: str) -> list[str]:
    return [f.code for f in check_text("train.py", text, RULES) if f.severity == "error"]


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize(
    ("unscaled", "clipped"), [("l", "l"), ("r", "r"), ("lr", "lr"), ("lr", "b"), ("lr", "r")]
)
def test_clip_of_what_was_unscaled_gives_no_finding(name: str, unscaled: str, clipped: str) -> None:
    assert errors(program(name, unscaled, clipped)) == []


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize(
    ("unscaled", "clipped", "code"),
    [("", "l", "HS101"), ("r", "l", "HS101"), ("", "b", "HS101"), ("l", "b", "HS120")],
)
def test_clip_of_what_was_not_unscaled_is_found(
    name: str, unscaled: str, clipped: str, code: str
) -> None:
    assert errors(program(name, unscaled, clipped)) == [code]


@pytest.mark.parametrize("name", MORE)
def test_optimizers_that_take_turns_give_no_finding(name: str) -> None:
    assert errors(MORE[name]) == []


@pytest.mark.parametrize("name", REPRESENTATIONS)
def test_kept_gradients_with_scale_give_no_finding(name: str) -> None:
    assert errors(REPRESENTATIONS[name]) == []


@pytest.mark.parametrize("name", REPRESENTATIONS)
def test_kept_gradients_without_scale_are_found(name: str) -> None:
    text = REPRESENTATIONS[name].replace("scaler.scale(loss)", "loss")
    assert errors(text) == ["HS108"]
