"""Faults that only the backward pass has."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import halfstep as hs
from zoo.case import EVERY, FP16, Truth, planted
from zoo.data import scenes
from zoo.planted.bases import (
    CLASSES,
    WIDTH,
    Convolutions,
    Decoder,
    class_of_image,
    decoder,
    pictures,
)
from zoo.recipes import recipe


class TimesGradient(torch.autograd.Function):
    """Hands values on and multiplies their gradients: a reversal layer without its sign."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None


class Amplified(nn.Module):
    """A linear map whose gradient is large in between."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        y = torch.as_tensor(TimesGradient.apply(y, 1e-9))
        return torch.as_tensor(TimesGradient.apply(y, 1e9))


@planted(
    Truth(
        ("overflow",),
        ("blocks.1.extra",),
        ("mul",),
        "backward",
        FP16,
        why="A gradient of about 1e-3 is multiplied by 1e9 and then by 1e-9.",
    )
)
def gradient_amplified() -> hs.Recipe:
    def plant(model: Decoder) -> None:
        model.blocks[1].extra = Amplified()

    return decoder("gradient_amplified", plant)


class Depth(nn.Module):
    """Depth from disparity: the focal length over small numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Conv2d(32, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        disparity = 1e-4 + 1e-3 * torch.sigmoid(self.score(x))
        focal = torch.full_like(disparity, 1.0)
        return focal / disparity


class DepthNet(nn.Module):
    """An image to the depth of its pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU())
        self.depth = Depth()

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.depth(self.body(x)))


@planted(
    Truth(
        ("overflow", "loss_too_large"),
        ("depth",),
        ("div", "mul"),
        "backward",
        FP16,
        why="Depths of 2000 fit FP16; the slope of 1/x at 5e-4 is 4e6, and the sum over an"
        " image leaves gradients of 1e6 without any loss scale.",
    )
)
def reciprocal_of_small() -> hs.Recipe:
    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return (model(batch[0])[:, 0].float() - batch[1]).abs().sum((1, 2)).mean()

    batches = []
    for seed in range(4):
        image, mask, _ = scenes(4, 32, seed=seed)
        batches.append((image, torch.where(mask > 0, 1000.0, 3000.0)))
    return recipe("reciprocal_of_small", DepthNet, loss_fn, batches)


class Auxiliary(nn.Module):
    """A decoder of two heads; the second one is trained by a loss of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Convolutions()
        self.auxiliary = nn.Sequential(nn.Linear(CLASSES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.body(x)
        return logits, self.auxiliary(logits.detach())


@planted(
    Truth(
        ("gradient_underflow",),
        ("", "auxiliary", "auxiliary.*"),
        (),
        "",
        FP16,
        why="The second head is trained by its loss alone, whose weight is 1e-12.",
    )
)
def auxiliary_loss_weight() -> hs.Recipe:
    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        logits, colour = model(batch[0])
        auxiliary = F.cross_entropy(colour, batch[1] % 3)
        return F.cross_entropy(logits, batch[1]) + 1e-12 * auxiliary

    return recipe("auxiliary_loss_weight", Auxiliary, loss_fn, pictures())


class Gates(nn.Module):
    """Sigmoids one after the other, all far from their middle."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(CLASSES, CLASSES) for _ in range(depth))
        with torch.no_grad():
            for layer in self.layers:
                layer.bias.fill_(5.0)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.sigmoid(layer(x))
        return x


@planted(
    Truth(
        ("gradient_underflow",),
        ("gates", "gates.*", "body", "body.*"),
        (),
        "",
        FP16,
        why="Each of six gates takes two decades from the gradient: 1e-14 is left for what is"
        " before them.",
    )
)
def deep_saturated_gates() -> hs.Recipe:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = Convolutions()
            self.gates = Gates(6)
            self.head = nn.Linear(CLASSES, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return torch.as_tensor(self.head(self.gates(self.body(x))))

    return recipe("deep_saturated_gates", Gated, class_of_image, pictures())


class ScaledDown(nn.Module):
    """A branch whose scale per channel is next to nothing, as some start it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.gamma = nn.Parameter(torch.full((WIDTH,), 1e-12))

    def forward(self, x: Tensor) -> Tensor:
        y = F.gelu(self.inner(x))
        return y * self.gamma


@planted(
    Truth(
        ("gradient_underflow",),
        ("blocks.1.*",),
        (),
        "",
        FP16,
        why="The scale of the branch is 1e-12, so that the gradients of its weights are 1e-15.",
    )
)
def path_scaled_down() -> hs.Recipe:
    def plant(model: Decoder) -> None:
        model.blocks[1].extra = ScaledDown()

    return decoder("path_scaled_down", plant)


class Spread(nn.Module):
    """The deviation of each feature over the batch, as a regulariser uses it."""

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(0, keepdim=True)
        return centred.square().mean(0).sqrt()


@planted(
    Truth(
        ("invalid_operation",),
        ("spread",),
        ("div",),
        "backward",
        EVERY,
        is_precision=False,
        why="Half of the features are the same for all images: the root at 0 has no slope.",
    )
)
def root_at_zero() -> hs.Recipe:
    class Regular(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = Convolutions()
            self.features = nn.Linear(CLASSES, WIDTH)
            self.spread = Spread()
            with torch.no_grad():
                self.features.weight[::2] = 0.0

        def forward(self, x: Tensor) -> Tensor:
            return torch.as_tensor(self.spread(self.features(self.body(x))))

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.relu(1.0 - model(batch[0])).mean()

    return recipe("root_at_zero", Regular, loss_fn, pictures())
