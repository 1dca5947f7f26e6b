"""Recipes of cases: fixed batches, and models that have been trained a little."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import halfstep as hs

TRAINED_STEPS = 100


def recipe(
    name: str,
    model: Callable[[], Any],
    loss_fn: Callable[[Any, Any], Tensor | hs.LossSum],
    batches: Sequence[Any],
    lr: float = 3e-4,
    optimizer: Callable[[Any], Any] | None = None,
) -> hs.Recipe:
    """A recipe over batches that are made once.

    Args:
        name: Of the case.
        model: Makes the model.
        loss_fn: As for `halfstep.Recipe`.
        batches: All of them.
        lr: Of AdamW.
        optimizer: Instead of AdamW.
    """
    return hs.Recipe(
        name=name,
        model=model,
        loss_fn=loss_fn,
        batches=lambda: batches,
        optimizer=optimizer or (lambda m: torch.optim.AdamW(m.parameters(), lr=lr)),
        unit="samples",
    )


def trained(fresh: hs.Recipe, steps: int = TRAINED_STEPS) -> hs.Recipe:
    """The same recipe, whose model has been trained in FP32 before.

    Args:
        fresh: Whose model is trained on its own batches.
        steps: How long.
    """

    def model() -> Any:
        made = fresh.model()
        optimizer = fresh.optimizer(made)
        if isinstance(made, Mapping) or isinstance(optimizer, Mapping):
            raise TypeError("trained() takes recipes of one model and one optimizer.")
        made.train()
        batches = list(fresh.batches())
        for step in range(steps):
            loss = fresh.loss_fn(made, batches[step % len(batches)])
            if isinstance(loss, hs.LossSum):
                raise TypeError("trained() takes recipes whose loss is a mean.")
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(made.parameters(), 1.0)
            optimizer.step()
        optimizer.zero_grad()
        return made

    return dataclasses.replace(fresh, model=model)


def of_transformers(model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
    """The loss that a model of transformers computes by itself.

    Args:
        model: Called with the batch as keywords, labels among them.
        batch: The keywords.
    """
    loss = model(**batch).loss
    if not isinstance(loss, Tensor):
        raise TypeError(f"{type(model).__name__} returned no loss; give labels in the batch.")
    return loss
