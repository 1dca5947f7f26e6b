"""Faults in losses and in what stands right before them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import halfstep as hs
from zoo.case import EVERY, FP16, HALVES, Truth, planted
from zoo.data import scenes, series
from zoo.planted.bases import (
    CLASSES,
    Convolutions,
    Decoder,
    next_token,
    pictures,
    texts,
)
from zoo.recipes import recipe


class Upsampler(nn.Module):
    """Makes an image twice as large."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 12, 3, padding=1)
        )
        self.shuffle = nn.PixelShuffle(2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.shuffle(self.body(x)))


@planted(
    Truth(
        ("overflow", "loss_too_large"),
        ("*",),
        (),
        "",
        FP16,
        why="The squared errors of a million pixels are summed: gradients of the weights are beyond"
        " 65504 without any loss scale.",
    )
)
def loss_of_a_million_elements() -> hs.Recipe:
    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.mse_loss(model(batch[0]).float(), batch[1], reduction="sum")

    batches = []
    for seed in range(2):
        large, _, _ = scenes(6, 256, seed=seed)
        batches.append((F.avg_pool2d(large, 2), large))
    return recipe("loss_of_a_million_elements", Upsampler, loss_fn, batches)


@planted(
    Truth(
        ("overflow", "loss_too_large"),
        ("*",),
        (),
        "",
        FP16,
        why="The loss is in units that make it 1e9 times as large as usual.",
    )
)
def loss_times_1e9() -> hs.Recipe:
    def loss_fn(model: nn.Module, text: Tensor) -> Tensor:
        return next_token(model, text) * 1e9

    return recipe("loss_times_1e9", Decoder, loss_fn, texts())


@planted(
    Truth(
        ("gradient_underflow",),
        ("*",),
        (),
        "",
        FP16,
        why="The loss is in units that make it 1e-13 of the usual: no loss scale up to 2^24 lifts"
        " its gradients into FP16.",
    )
)
def loss_times_1e_minus_13() -> hs.Recipe:
    def loss_fn(model: nn.Module, text: Tensor) -> Tensor:
        return next_token(model, text) * 1e-13

    return recipe("loss_times_1e_minus_13", Decoder, loss_fn, texts())


@planted(
    Truth(
        ("invalid_operation",),
        ("",),
        ("div",),
        "forward",
        EVERY,
        is_precision=False,
        why="No token of the batch has a target, and the sum of nothing is divided by 0.",
    )
)
def masked_mean_without_targets() -> hs.Recipe:
    def loss_fn(model: nn.Module, text: Tensor) -> Tensor:
        logits = model(text[:, :-1])
        losses = F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten(), reduction="none")
        valid = (text[:, 1:] >= 256).float().flatten()
        return (losses * valid).sum() / valid.sum()

    return recipe("masked_mean_without_targets", Decoder, loss_fn, texts())


@planted(
    Truth(
        ("cannot_run",),
        ("*",),
        (),
        "",
        HALVES,
        why="binary_cross_entropy of probabilities is refused under autocast on CUDA.",
    )
)
def bce_of_probabilities() -> hs.Recipe:
    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        chance = torch.sigmoid(model(batch[0]))
        return F.binary_cross_entropy(chance, F.one_hot(batch[1], CLASSES).float())

    return recipe("bce_of_probabilities", Convolutions, loss_fn, pictures())


@planted(
    Truth(
        ("half_loss",),
        ("*",),
        (),
        "",
        FP16,
        why="The loss is the model's own 16-bit result with one element in one dimension.",
    )
)
def vector_half_loss() -> hs.Recipe:
    class Energy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = Convolutions()
            self.energy = nn.Linear(CLASSES, 1)

        def forward(self, x: Tensor) -> Tensor:
            return torch.as_tensor(self.energy(self.body(x).mean(0)))

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return model(batch[0])

    return recipe("vector_half_loss", Energy, loss_fn, pictures())


class Critic(nn.Module):
    """Images to one logit."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Convolutions()
        self.score = nn.Linear(CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.score(self.body(x)))


@planted(
    Truth(
        ("invalid_operation",),
        ("",),
        ("log",),
        "forward",
        EVERY,
        is_precision=False,
        why="The critic is certain, -200 before the sigmoid: that is 0 in FP32 too, and its"
        " logarithm -inf.",
    )
)
def gan_log_of_zero() -> hs.Recipe:
    def model() -> nn.Module:
        made = Critic()
        with torch.no_grad():
            made.score.bias.fill_(-200.0)
        return made

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        real = torch.sigmoid(model(batch[0]))
        return -torch.log(real).mean()

    return recipe("gan_log_of_zero", model, loss_fn, pictures())


class Hazard(nn.Module):
    """The chance that something has happened, and the logarithm that it has not."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(CLASSES, 1)
        with torch.no_grad():
            self.score.bias.fill_(11.0)

    def forward(self, x: Tensor) -> Tensor:
        happened = torch.sigmoid(self.score(x))
        not_yet = 1.0 - happened
        return torch.log(not_yet)


@planted(
    Truth(
        ("rounding",),
        ("hazard",),
        ("sigmoid",),
        "forward",
        HALVES,
        why="sigmoid(11) = 1 - 1.7e-5 is 1 in 16 bits, so that log(1 - p) is -inf.",
    )
)
def log_of_one_minus_probability() -> hs.Recipe:
    class Survival(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = Convolutions()
            self.hazard = Hazard()

        def forward(self, x: Tensor) -> Tensor:
            return torch.as_tensor(self.hazard(self.body(x)))

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return -model(batch[0]).float().mean()

    return recipe("log_of_one_minus_probability", Survival, loss_fn, pictures())


class Joint(nn.Module):
    """The chance of four independent things, as a product."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(CLASSES, 4)
        with torch.no_grad():
            self.score.bias.fill_(-5.0)

    def forward(self, x: Tensor) -> Tensor:
        a, b, c, d = torch.sigmoid(self.score(x)).unbind(-1)
        product = a * b * c * d
        return torch.log(product)


@planted(
    Truth(
        ("underflow",),
        ("joint",),
        ("mul",),
        "forward",
        FP16,
        why="Four chances of 0.0067 make 2e-9, which is 0 in FP16; the logarithm follows.",
    )
)
def probability_product() -> hs.Recipe:
    class All(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = Convolutions()
            self.joint = Joint()

        def forward(self, x: Tensor) -> Tensor:
            return torch.as_tensor(self.joint(self.body(x)))

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return -model(batch[0]).float().mean()

    return recipe("probability_product", All, loss_fn, pictures())


class Similarity(nn.Module):
    """The cosine of two vectors, written by hand."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        lengths = (a * a).sum(-1).sqrt() * (b * b).sum(-1).sqrt()
        return (a * b).sum(-1) / (lengths + 1e-12)


class Twins(nn.Module):
    """Two views of an image become two small vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Convolutions()
        self.project = nn.Linear(CLASSES, 32)
        self.similarity = Similarity()
        with torch.no_grad():
            self.project.weight.mul_(5e-4)
            self.project.bias.mul_(5e-4)

    def forward(self, x: Tensor) -> Tensor:
        one, other = self.project(self.body(x)), self.project(self.body(x.flip(-1)))
        return torch.as_tensor(self.similarity(one, other))


@planted(
    Truth(
        ("underflow", "silent_difference"),
        ("similarity",),
        ("mul",),
        "forward",
        FP16,
        why="Components of 1e-4 have squares of 1e-8, which are 0 in FP16: the length is 0 and its"
        " root has no slope.",
    )
)
def cosine_near_zero() -> hs.Recipe:
    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return 1.0 - model(batch[0]).float().mean()

    return recipe("cosine_near_zero", Twins, loss_fn, pictures())


class Deviation(nn.Module):
    """A predicted deviation and its square."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(64, 1)

    def forward(self, x: Tensor) -> Tensor:
        deviation = torch.sigmoid(self.score(x)) * 2e-4
        return deviation * deviation


class Forecast(nn.Module):
    """The next value of a series, in small units, with its variance."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.LSTM(2, 64, batch_first=True)
        self.value = nn.Linear(64, 1)
        self.variance = Deviation()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        states, _ = self.body(x)
        return self.value(states).float() * 1e-4, self.variance(states)


@planted(
    Truth(
        ("underflow",),
        ("variance",),
        ("mul",),
        "forward",
        FP16,
        why="Deviations of 1e-4 have squares of 1e-8, which are 0 in FP16; the error is divided by"
        " them.",
    )
)
def adaptive_scale_squared() -> hs.Recipe:
    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        value, variance = model(batch[0])
        error = value - batch[1]
        return (error * error / variance).mean()

    batches = []
    for seed in range(4):
        values = series(4, 49, 2, seed)
        batches.append((values[:, :-1], values[:, 1:, :1] * 1e-4))
    return recipe("adaptive_scale_squared", Forecast, loss_fn, batches)
