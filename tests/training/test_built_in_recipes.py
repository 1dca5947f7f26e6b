"""The recipes that come with halfstep learn what they are meant to."""

from __future__ import annotations

import itertools

import pytest
import torch

import halfstep as hs


def test_lm_in_fp32_learns_its_text() -> None:
    run = hs.fit(hs.load_recipe("lm"), precision="fp32", steps=100)
    fall = run.initial_validation["val_loss"] - run.validation["val_loss"]
    assert fall >= 1.5  # nats per byte; to know nothing costs ln 256 = 5.5


def test_lm_yields_the_same_batches_at_every_call() -> None:
    recipe = hs.load_recipe("lm")
    first, second = (list(itertools.islice(recipe.batches(), 3)) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a.x, b.x)
        assert torch.equal(a.y, b.y)
        assert torch.equal(a.x[:, 1:], a.y[:, :-1])  # the target is the next byte
    assert not torch.equal(first[0].x, first[1].x)


def test_digits_learns_to_read_them() -> None:
    pytest.importorskip("sklearn", reason="the digits recipe needs scikit-learn")
    recipe = hs.load_recipe("digits")
    epoch = len(list(recipe.batches()))
    run = hs.fit(recipe, precision="fp32", steps=5 * epoch)
    assert run.initial_validation["val_accuracy"] < 0.5
    assert run.validation["val_accuracy"] > 0.9
    assert run.steps[-1].consumed == 5 * 1437  # every training image once per epoch
