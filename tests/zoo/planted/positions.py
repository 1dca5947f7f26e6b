"""Faults in positions, times and indices."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import halfstep as hs
from zoo.case import HALVES, Truth, planted
from zoo.data import scenes, series
from zoo.planted.bases import (
    VOCABULARY,
    WIDTH,
    Attention,
    Decoder,
    decoder,
    next_token,
    texts,
)
from zoo.recipes import recipe

_SILENT = ("silent_difference", "rounding")


class Angles(nn.Module):
    """The angles of rotary embeddings, in the dtype of what they turn."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.first = first
        width = WIDTH // 4
        self.register_buffer("frequencies", 10000.0 ** (-torch.arange(0, width, 2) / width))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        places = torch.arange(self.first, self.first + x.shape[-2])
        frequencies = self.frequencies.to(x.dtype)
        angles = places.to(x.dtype)[:, None] * frequencies[None, :]
        return angles.cos(), angles.sin()


class Rotary(Attention):
    """Attention with rotary embeddings, far into a long text."""

    def __init__(self) -> None:
        super().__init__()
        self.angles = Angles(first=3000)

    def _mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        cos, sin = self.angles(q)
        return super()._mix(_turned(q, cos, sin), _turned(k, cos, sin), v)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.cat([even * cos - odd * sin, even * sin + odd * cos], -1)


@planted(
    Truth(
        _SILENT,
        ("blocks.1.attn.angles",),
        ("mul", "_to_copy"),
        "forward",
        HALVES,
        why="Angles of about 3000 have steps of 2 in FP16 and 16 in BF16, a turn is 6.28.",
    )
)
def rotary_angles() -> hs.Recipe:
    def plant(model: Decoder) -> None:
        model.blocks[1].attn = attention = Rotary()
        with torch.no_grad():
            attention.qkv.weight[: 2 * WIDTH].mul_(4.0)

    return decoder("rotary_angles", plant)


class CountedInHalf(nn.Module):
    """Sinusoidal positions from a range in the dtype of what they are added to."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        rates = torch.exp(-math.log(20.0) * torch.arange(0, WIDTH, 2) / WIDTH)
        self.register_buffer("rates", rates)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        places = torch.arange(y.shape[1], dtype=y.dtype)
        angles = places.float()[:, None] * self.rates[None, :]
        return y + 8.0 * torch.cat([angles.sin(), angles.cos()], -1)


@planted(
    Truth(
        _SILENT,
        ("blocks.1.extra",),
        ("arange",),
        "forward",
        HALVES,
        why="Counted in BF16 the positions beyond 256 are those of their neighbours; FP16 counts"
        " to 2048.",
    )
)
def positions_counted_in_half() -> hs.Recipe:
    def model() -> nn.Module:
        made = Decoder(2)
        made.blocks[1].extra = CountedInHalf()
        return made

    return recipe("positions_counted_in_half", model, next_token, texts(1, 700))


class TimeEmbedding(nn.Module):
    """Sinusoids of the time, which is cast to the dtype of the sample first."""

    def __init__(self) -> None:
        super().__init__()
        rates = torch.exp(-math.log(10000.0) * torch.arange(32) / 32)
        self.register_buffer("rates", rates)
        self.up = nn.Sequential(nn.Linear(64, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, time: Tensor, sample: Tensor) -> Tensor:
        time = time.to(sample.dtype)
        angles = time.float()[:, None] * self.rates[None, :]
        return torch.as_tensor(self.up(torch.cat([angles.sin(), angles.cos()], -1)))


class Denoiser(nn.Module):
    """Predicts the noise of images of 16 x 16 from them and the time."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 3, padding=1)
        self.time = TimeEmbedding()
        self.body = nn.Sequential(
            nn.GroupNorm(8, WIDTH), nn.SiLU(), nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        )
        self.head = nn.Conv2d(WIDTH, 3, 3, padding=1)

    def forward(self, noisy: Tensor, time: Tensor) -> Tensor:
        x = self.stem(noisy)
        x = x + self.time(time, x)[:, :, None, None]
        return torch.as_tensor(self.head(x + self.body(x)))


def velocity(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Squared error of the predicted direction from the image to the noise.

    Args:
        model: Noisy images and times to directions.
        batch: Images, noise and times from 0 to 1000.
    """
    image, noise, time = batch
    share = (time / 1000.0)[:, None, None, None]
    predicted = model(image * (1 - share) + noise * share, time)
    return F.mse_loss(predicted.float(), noise - image)


@planted(
    Truth(
        _SILENT,
        ("time",),
        ("_to_copy",),
        "forward",
        HALVES,
        why="Times such as 988.49 become 988.5 in FP16 and 988 in BF16, whose steps are 4; the"
        " fastest sinusoid has a period of 6.28.",
    )
)
def timestep_in_half() -> hs.Recipe:
    batches = []
    for seed in range(4):
        chance = torch.Generator().manual_seed(seed)
        image, _, _ = scenes(8, 16, seed=seed)
        noise = torch.randn(image.shape, generator=chance)
        batches.append((image, noise, 600.0 + 400.0 * torch.rand(8, generator=chance)))

    def model() -> nn.Module:
        made = Denoiser()
        with torch.no_grad():
            made.time.up[0].weight.mul_(4.0)
            made.time.up[2].weight.mul_(4.0)
        return made

    return recipe("timestep_in_half", model, velocity, batches)


class Source(nn.Module):
    """The phase of a voice: the running sum of its pitch, as vocoders make it."""

    def __init__(self) -> None:
        super().__init__()
        self.pitch = nn.Linear(1, 1)
        with torch.no_grad():
            self.pitch.weight.fill_(0.2)
            self.pitch.bias.fill_(0.8)

    def forward(self, contour: Tensor) -> Tensor:
        step = self.pitch(contour)
        phase = torch.cumsum(step, 1, dtype=step.dtype)
        turns = phase.float() * (2 * math.pi)
        return turns.sin()


class Vocoder(nn.Module):
    """A source and a filter."""

    def __init__(self) -> None:
        super().__init__()
        self.source = Source()
        self.filter = nn.Sequential(
            nn.Conv1d(1, 16, 9, padding=4), nn.Tanh(), nn.Conv1d(16, 1, 9, padding=4)
        )

    def forward(self, contour: Tensor) -> Tensor:
        wave = self.source(contour).transpose(1, 2)
        return torch.as_tensor(self.filter(wave))


@planted(
    Truth(
        _SILENT,
        ("source",),
        ("cumsum",),
        "forward",
        HALVES,
        why="The running sum goes to 1600 turns, where FP16 has steps of 1 and BF16 of 8: nothing"
        " is left of the place within a turn.",
    )
)
def cumulative_position() -> hs.Recipe:
    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.mse_loss(model(batch[0]).float(), batch[1])

    batches = []
    for seed in range(2):
        contour = series(2, 2000, 1, seed) * 0.1
        turns = torch.cumsum(contour * 0.2 + 0.8, 1)
        batches.append((contour, torch.sin(turns * 2 * math.pi).transpose(1, 2)))
    return recipe("cumulative_position", Vocoder, loss_fn, batches)


class Neighbours(nn.Module):
    """Features of points from their squared distances: |a|^2 + |b|^2 - 2 ab."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(64, WIDTH)

    def forward(self, points: Tensor) -> Tensor:
        squares = points.square().sum(-1)
        products = points @ points.transpose(1, 2)
        distances = squares[:, :, None] + squares[:, None, :] - 2.0 * products
        near = torch.exp(-20.0 * distances.clamp(0.0, 10.0))
        return torch.as_tensor(self.up(near))


@planted(
    Truth(
        _SILENT,
        ("neighbours",),
        ("bmm", "_to_copy"),
        "forward",
        HALVES,
        why="Coordinates of about 100 with distances of 0.3: the products are 3e4 with steps of 16"
        " in FP16 and 128 in BF16.",
    )
)
def coordinates_far_from_zero() -> hs.Recipe:
    class Points(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.neighbours = Neighbours()
            self.norm = nn.LayerNorm(WIDTH)
            self.head = nn.Linear(WIDTH, 4)

        def forward(self, points: Tensor) -> Tensor:
            return torch.as_tensor(self.head(F.relu(self.norm(self.neighbours(points)))).mean(1))

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    batches = []
    for seed in range(4):
        chance = torch.Generator().manual_seed(seed)
        shape = torch.randint(4, (8,), generator=chance)
        angle = 2 * math.pi * torch.rand(8, 64, generator=chance)
        wave = 0.3 + 0.1 * torch.cos(angle * (shape[:, None] + 1))
        flat = torch.stack([wave * angle.cos(), wave * angle.sin(), 0 * wave], -1)
        batches.append((100.0 + flat, shape))
    return recipe("coordinates_far_from_zero", Points, loss_fn, batches)


class Lookup(nn.Module):
    """Rows of a table by an index that is computed from coordinates in 16 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(64 * 64, WIDTH)

    def forward(self, features: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        rows, columns = rows.to(features.dtype), columns.to(features.dtype)
        start = rows * 64.0
        index = start + columns
        return torch.as_tensor(self.table(index.long().clamp(0, 64 * 64 - 1)))


class OnMap(nn.Module):
    """Adds to each token what a map of 64 x 64 cells has at its place."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.up = nn.Linear(WIDTH, WIDTH)
        self.lookup = Lookup()
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, text: Tensor) -> Tensor:
        x = self.up(self.embed(text))
        count, length = text.shape
        places = torch.arange(count * length).view(count, length) * 29 % (64 * 64)
        x = x + self.lookup(x, places // 64, places % 64)
        return torch.as_tensor(self.head(F.gelu(x)))


@planted(
    Truth(
        _SILENT,
        ("lookup",),
        ("add",),
        "forward",
        HALVES,
        why="Indices to 4095: FP16 has steps of 2 above 2048, BF16 of 16, so that other rows are"
        " taken; the rows' starts are exact.",
    )
)
def half_index_table() -> hs.Recipe:
    return recipe("half_index_table", OnMap, next_token, texts())
