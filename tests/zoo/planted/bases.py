"""The healthy models that faults are planted into."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import halfstep as hs
from zoo.data import images, tokens
from zoo.recipes import recipe

WIDTH = 64
HEADS = 4
VOCABULARY = 256
LENGTH = 32
CLASSES = 10


class Attention(nn.Module):
    """Of several heads; `_mix` is the part that faults replace."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        count, length, _ = x.shape
        heads = self.qkv(x).view(count, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        q, k, v = heads.unbind(0)
        mixed = self._mix(q, k, v)
        mixed = mixed.transpose(1, 2).reshape(count, length, WIDTH)
        return torch.as_tensor(self.out(mixed))

    def _mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Block(nn.Module):
    """Attention, an MLP, and a place for something more."""

    def __init__(self, attention: Callable[[], nn.Module] = Attention) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attn = attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )
        self.extra: nn.Module = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + torch.as_tensor(self.extra(self.mlp(self.norm2(x))))


class Decoder(nn.Module):
    """A causal language model of a few blocks."""

    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.embed: nn.Module = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.norm: nn.Module = nn.LayerNorm(WIDTH)
        self.head: nn.Module = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, text: Tensor) -> Tensor:
        x = self.embed(text)
        for block in self.blocks:
            x = block(x)
        return torch.as_tensor(self.head(self.norm(x)))


def next_token(model: nn.Module, text: Tensor) -> Tensor:
    """Cross entropy of each next token.

    Args:
        model: Text to logits.
        text: Of shape (count, length).
    """
    logits = model(text[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())


def texts(count: int = 4, length: int = LENGTH) -> list[Tensor]:
    """Batches of texts.

    Args:
        count: Of texts in a batch.
        length: Of a text.
    """
    return [tokens(count, length + 1, VOCABULARY, seed) for seed in range(4)]


def decoder(name: str, plant: Callable[[Decoder], None], depth: int = 3) -> hs.Recipe:
    """A language model with something planted into it.

    Args:
        name: Of the case.
        plant: Changes the model.
        depth: Number of blocks.
    """

    def model() -> nn.Module:
        made = Decoder(depth)
        plant(made)
        return made

    return recipe(name, model, next_token, texts())


class Stage(nn.Module):
    """Convolution, normalisation, activation, and a place for something more."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, out, 3, stride, padding=1)
        self.norm: nn.Module = nn.BatchNorm2d(out)
        self.extra: nn.Module = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.extra(F.relu(self.norm(self.conv(x)))))


class Convolutions(nn.Module):
    """A classifier of images of a few stages."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList([Stage(3, 32, 2), Stage(32, 32, 1), Stage(32, 64, 2)])
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            x = stage(x)
        return torch.as_tensor(self.head(x.mean((2, 3))))


def class_of_image(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Cross entropy of the class.

    Args:
        model: Images to logits.
        batch: Images and classes.
    """
    return F.cross_entropy(model(batch[0]), batch[1])


def pictures(count: int = 16, size: int = 32) -> list[tuple[Tensor, Tensor]]:
    """Batches of images.

    Args:
        count: Of images in a batch.
        size: Of an image.
    """
    return [images(count, size, CLASSES, seed) for seed in range(4)]


def convolutions(name: str, plant: Callable[[Convolutions], None]) -> hs.Recipe:
    """A classifier of images with something planted into it.

    Args:
        name: Of the case.
        plant: Changes the model.
    """

    def model() -> nn.Module:
        made = Convolutions()
        plant(made)
        return made

    return recipe(name, model, class_of_image, pictures())


def low(x: Tensor) -> torch.dtype:
    """What autocast computes in where it is on: what code that casts by hand asks for.

    Args:
        x: Whose device counts.
    """
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
