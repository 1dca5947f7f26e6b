"""``digits``: a small convolutional network on scikit-learn's handwritten digits (8 x 8)."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halfstep.training import LossSum, Recipe

_BATCH = 64
_NUM_TRAIN = 1437  # of 1797; the rest is for validation


class Batch(NamedTuple):
    """Images (batch, 1, 8, 8) in [0, 1] and class ids (batch,)."""

    images: Tensor
    labels: Tensor


@functools.cache
def _data() -> Batch:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ImportError(
            "scikit-learn, for its digits; install it with: pip install 'halfstep[digits]'"
        ) from None
    images, labels = load_digits(return_X_y=True)
    pixels = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return Batch(pixels[order], torch.tensor(labels, dtype=torch.int64)[order])


def _model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 2 * 2, 10),
    )


def _batches() -> Iterator[Batch]:
    data = _data()
    for start in range(0, _NUM_TRAIN, _BATCH):
        rows = slice(start, min(start + _BATCH, _NUM_TRAIN))
        yield Batch(data.images[rows], data.labels[rows])


def _loss(model: nn.Module, batch: Batch) -> LossSum:
    logits = model(batch.images)
    total = F.cross_entropy(logits, batch.labels, reduction="sum")
    correct = (logits.argmax(1) == batch.labels).sum()
    return LossSum(total, len(batch.labels), accuracy=correct)


def _validate(model: nn.Module) -> dict[str, float]:
    device = next(model.parameters()).device
    images, labels = _data().images[_NUM_TRAIN:], _data().labels[_NUM_TRAIN:].to(device)
    logits = model(images.to(device))
    return {
        "val_loss": float(F.cross_entropy(logits.float(), labels)),
        "val_accuracy": float((logits.argmax(1) == labels).float().mean()),
    }


def build() -> Recipe:
    """The recipe."""
    _data()  # say what is missing before anything starts
    return Recipe(
        name="digits",
        model=_model,
        loss_fn=_loss,
        batches=_batches,
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2),
        validate=_validate,
        unit="samples",
    )
