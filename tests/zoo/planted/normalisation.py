"""Faults in norms, variances and embeddings written by hand."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import halfstep as hs
from zoo.case import EVERY, FP16, HALVES, Truth, planted
from zoo.planted.bases import (
    VOCABULARY,
    WIDTH,
    Attention,
    Convolutions,
    Decoder,
    class_of_image,
    convolutions,
    decoder,
    pictures,
)
from zoo.recipes import recipe


class MeanOfSquares(nn.Module):
    """RMS norm with a product instead of `pow`, which autocast would compute in FP32."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)


class NormedQueries(Attention):
    """Queries and keys are normalised in each head."""

    def __init__(self) -> None:
        super().__init__()
        self.q_norm = MeanOfSquares()
        self.k_norm = MeanOfSquares()

    def _mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return super()._mix(self.q_norm(q), self.k_norm(k), v)


@planted(
    Truth(
        ("silent_difference", "overflow"),
        ("blocks.1.attn.q_norm",),
        ("mul",),
        "forward",
        FP16,
        why="Queries are about 800, their squares 6e5; the root of inf divides them to 0, or the"
        " backward meets 0 times inf.",
    )
)
def second_moment_of_large_activations() -> hs.Recipe:
    def plant(model: Decoder) -> None:
        model.blocks[1].attn = attention = NormedQueries()
        with torch.no_grad():
            attention.qkv.weight[:WIDTH].normal_(std=100.0)

    return decoder("second_moment_of_large_activations", plant)


class ByHand(nn.Module):
    """Normalises each channel of each image over its pixels."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean((2, 3), keepdim=True)
        variance = x.var((2, 3), keepdim=True)
        variance = variance + self.eps
        return (x - mean) / variance.sqrt()


@planted(
    Truth(
        ("silent_difference", "overflow"),
        ("stages.1.norm",),
        ("var",),
        "forward",
        FP16,
        why="The deviation is about 1000, so that the variance is inf in FP16 and the quotient 0.",
    )
)
def variance_of_large_activations() -> hs.Recipe:
    def plant(model: Convolutions) -> None:
        model.stages[1].norm = ByHand(1e-5)
        with torch.no_grad():
            model.stages[1].conv.weight.normal_(std=120.0)

    return convolutions("variance_of_large_activations", plant)


@planted(
    Truth(
        ("underflow",),
        ("stages.0.norm",),
        ("add",),
        "forward",
        FP16,
        why="One image of the batch is blank: its variance is 0, and the epsilon of 1e-8 is 0 in"
        " FP16, hence 0/0.",
    )
)
def instance_norm_of_constant_input() -> hs.Recipe:
    def model() -> nn.Module:
        made = Convolutions()
        made.stages[0].conv = nn.Conv2d(3, 32, 3, 2, padding=1, padding_mode="replicate")
        made.stages[0].norm = ByHand(1e-8)
        return made

    batches = []
    for image, label in pictures():
        blank = image.clone()
        blank[3] = 0.0
        batches.append((blank, label))
    return recipe("instance_norm_of_constant_input", model, class_of_image, batches)


class OutlierEmbedding(nn.Module):
    """A factorised embedding that is multiplied by the root of the width, as usual."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, 16)
        self.up = nn.Linear(16, WIDTH)

    def forward(self, text: Tensor) -> Tensor:
        x = self.up(self.table(text))
        return torch.as_tensor(x * 64.0)


@planted(
    Truth(
        ("overflow",),
        ("embed",),
        ("mul",),
        "forward",
        FP16,
        why="One dimension has values of about 4000, as large models have; times 64 that is 2.6e5."
        " The normalisation afterwards takes it away.",
    )
)
def embedding_scaled() -> hs.Recipe:
    def plant(model: Decoder) -> None:
        model.embed = embed = OutlierEmbedding()
        with torch.no_grad():
            embed.up.bias[7] = 4000.0

    return decoder("embedding_scaled", plant)


class Moments(nn.Module):
    """Layer norm by E[x^2] - E[x]^2; a bound keeps the variance above 0, or nothing does."""

    def __init__(self, floor: float | None) -> None:
        super().__init__()
        self.floor = floor
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        mean = y.mean(-1, keepdim=True)
        variance = (y * y).mean(-1, keepdim=True) - mean * mean
        if self.floor is not None:
            variance = variance.clamp_min(self.floor)
        return (y - mean) * torch.rsqrt(variance + 1e-6)


@planted(
    Truth(
        ("rounding",),
        ("blocks.1.extra",),
        ("mul", "mean"),
        "forward",
        HALVES,
        why="Values of 30 with a deviation of 0.3: the squares are 900 with steps of 0.5 or 4, so"
        " that the difference of the means is below 0 in 16 bits and the root is NaN.",
    )
)
def variance_below_zero() -> hs.Recipe:
    return decoder("variance_below_zero", lambda m: _moments(m, 30.0, None))


@planted(
    Truth(
        ("silent_difference", "rounding"),
        ("blocks.1.extra",),
        ("mul", "mean"),
        "forward",
        HALVES,
        why="Values of 10 with a deviation of 0.3: the difference of the means is about 0.1, their"
        " steps are 0.06 in FP16 and 0.5 in BF16.",
    )
)
def layer_norm_by_difference() -> hs.Recipe:
    return decoder("layer_norm_by_difference", lambda m: _moments(m, 10.0, 1e-3))


def _moments(model: Decoder, offset: float, floor: float | None) -> None:
    model.blocks[1].extra = moments = Moments(floor)
    with torch.no_grad():
        moments.inner.bias.fill_(offset)
        moments.inner.weight.mul_(2.0)


class SmallVariance(nn.Module):
    """Divides by a deviation that is the root of a mean of products."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        centred = y - y.mean(-1, keepdim=True)
        deviation = (centred * centred).mean(-1, keepdim=True).sqrt()
        return centred / (deviation + 1e-6)


@planted(
    Truth(
        ("underflow", "silent_difference"),
        ("blocks.1.extra",),
        ("mul",),
        "forward",
        FP16,
        why="Deviations of 5e-5 have squares of 2.5e-9, which are 0 in FP16; the root at 0 has no"
        " slope either.",
    )
)
def root_of_small_variance() -> hs.Recipe:
    def plant(model: Decoder) -> None:
        model.blocks[1].extra = small = SmallVariance()
        with torch.no_grad():
            small.inner.weight.mul_(5e-4)
            small.inner.bias.mul_(5e-4)

    return decoder("root_of_small_variance", plant)


class ByMaximum(nn.Module):
    """Divides each row by its largest value, with an epsilon for rows of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.inner(x))
        largest = y.amax(-1, keepdim=True)
        largest = largest + 1e-8
        return y / largest


@planted(
    Truth(
        ("underflow",),
        ("blocks.1.extra",),
        ("add",),
        "forward",
        FP16,
        why="Most rows are 0 behind the ReLU, and 0 + 1e-8 is 0 in FP16: 0/0 there, 0 in FP32.",
    )
)
def eps_below_fp16() -> hs.Recipe:
    def plant(model: Decoder) -> None:
        model.blocks[1].extra = part = ByMaximum()
        with torch.no_grad():
            part.inner.bias.fill_(-0.6)

    return decoder("eps_below_fp16", plant)


class UnitLength(nn.Module):
    """Vectors of length 1, without an epsilon; padding has the vector 0."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH, padding_idx=5)

    def forward(self, text: Tensor) -> Tensor:
        x = self.table(text)
        return torch.as_tensor(x / x.norm(dim=-1, keepdim=True))


@planted(
    Truth(
        ("invalid_operation",),
        ("embed",),
        ("div",),
        "forward",
        EVERY,
        is_precision=False,
        why="The commonest token is taken for padding, its vector is 0, and 0/0 is NaN everywhere.",
    )
)
def norm_at_zero() -> hs.Recipe:
    def plant(model: Decoder) -> None:
        model.embed = UnitLength()

    return decoder("norm_at_zero", plant)


@planted(
    Truth(
        ("silent_difference", "rounding"),
        ("stages.0.conv",),
        ("convolution", "_to_copy"),
        "forward",
        HALVES,
        why="Counts of a sensor near 30000 with differences of about 10: steps of 16 in FP16 and"
        " 128 in BF16 leave nothing of the picture, and BatchNorm shows it.",
    )
)
def batch_norm_after_rounded_input() -> hs.Recipe:
    batches = [(30000.0 + 10.0 * image, label) for image, label in pictures()]

    def model() -> nn.Module:
        made = Convolutions()
        made.stages[0].conv = nn.Conv2d(3, 32, 3, 2, padding=1, padding_mode="replicate")
        return made

    return recipe("batch_norm_after_rounded_input", model, class_of_image, batches)
