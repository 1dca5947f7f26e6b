"""Faults that show over steps: counters, averages and weights in 16 bits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import halfstep as hs
from zoo.case import EVERY, Truth, planted
from zoo.planted.bases import (
    CLASSES,
    Convolutions,
    Decoder,
    class_of_image,
    next_token,
    pictures,
    texts,
)
from zoo.recipes import recipe


class Centre(nn.Module):
    """A running mean of the logits, taken away from them, as in self-distillation."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.ones(CLASSES, dtype=torch.bfloat16))

    def forward(self, x: Tensor) -> Tensor:
        centred = x - self.centre.float()
        if self.training:
            mean = x.detach().mean(0).to(torch.bfloat16)
            self.centre.mul_(0.999).add_(mean, alpha=0.001)
        return centred


class Centred(nn.Module):
    """A classifier with a centre."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Convolutions()
        self.centre = Centre()

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.centre(self.body(x)))


@planted(
    Truth(
        ("*",),
        ("*",),
        (),
        "",
        EVERY,
        is_precision=None,
        subject="centre.centre",
        why="The average is BF16: 0.999 of 1 rounds to 1, and it never moves.",
    ),
    steps=30,
)
def average_in_bf16() -> hs.Recipe:
    return recipe("average_in_bf16", Centred, class_of_image, pictures())


class Warm(nn.Module):
    """Grows in over the first thousand batches, which it counts itself."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=torch.bfloat16))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += 1
        return x * (0.1 + 0.9 * (self.seen.float() / 1000.0).clamp_max(1.0))


@planted(
    Truth(
        ("*",),
        ("*",),
        (),
        "",
        EVERY,
        is_precision=None,
        subject="warm.seen",
        why="The counter is BF16 and stops at 256.",
    ),
    steps=300,
)
def counter_in_half() -> hs.Recipe:
    class Growing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, CLASSES))
            self.warm = Warm()

        def forward(self, x: Tensor) -> Tensor:
            return torch.as_tensor(self.warm(self.body(x)))

    return recipe("counter_in_half", Growing, class_of_image, pictures(8, 8))


@planted(
    Truth(
        ("lost_updates",),
        ("*",),
        (),
        "",
        EVERY,
        is_precision=None,
        why="SGD with a rate of 1e-11 moves weights of 0.1 by less than half of their last bit.",
    )
)
def learning_rate_too_small() -> hs.Recipe:
    return recipe(
        "learning_rate_too_small",
        Decoder,
        next_token,
        texts(),
        optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=1e-11),
    )


@planted(
    Truth(
        ("low_precision_weights", "lost_updates"),
        ("*",),
        (),
        "",
        EVERY,
        is_precision=True,
        why="The model was made BF16 as a whole and is trained with a rate of 1e-5, whose updates"
        " are less than half a step of most weights.",
    )
)
def weights_in_bf16() -> hs.Recipe:
    def loss_fn(model: nn.Module, text: Tensor) -> Tensor:
        logits = model(text[:, :-1]).float()
        return nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())

    return recipe(
        "weights_in_bf16", lambda: Decoder().to(torch.bfloat16), loss_fn, texts(), lr=1e-5
    )
