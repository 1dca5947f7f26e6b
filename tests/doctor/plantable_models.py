"""A Transformer, a CNN, an RNN and an MLP, each with a place for a fault after every block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import halfstep as hs

WIDTH = 16
CLASSES = 5
DEPTH = 3
Extra = Callable[[nn.Module], nn.Module]  # from a width-preserving linear map to a fault


class MlpBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)
        self.extra = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.extra(torch.tanh(self.fc(x))))


class ConvBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        self.norm = nn.BatchNorm2d(WIDTH)
        self.extra = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.extra(F.relu(self.norm(self.conv(x)))))


class RnnBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.RNNCell(WIDTH, WIDTH)
        self.extra = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), WIDTH)
        states = []
        for step in x.unbind(1):
            state = self.cell(step, state)
            states.append(state)
        return torch.as_tensor(self.extra(torch.stack(states, 1)))


class AttentionBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )
        self.extra = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).view(*x.shape[:2], 3, 2, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(x.shape))
        return x + torch.as_tensor(self.extra(self.mlp(self.norm2(x))))


@dataclass(frozen=True)
class Family:
    """One kind of network: its block, its input, and a linear map that keeps its shape."""

    name: str
    block: Callable[[], nn.Module]
    inputs: tuple[int, ...]
    linear: Callable[[], nn.Module]


FAMILIES = [
    Family("mlp", MlpBlock, (12, WIDTH), lambda: nn.Linear(WIDTH, WIDTH)),
    Family("cnn", ConvBlock, (4, WIDTH, 6, 6), lambda: nn.Conv2d(WIDTH, WIDTH, 1)),
    Family("rnn", RnnBlock, (4, 5, WIDTH), lambda: nn.Linear(WIDTH, WIDTH)),
    Family("transformer", AttentionBlock, (3, 6, WIDTH), lambda: nn.Linear(WIDTH, WIDTH)),
]


class Net(nn.Module):
    """Blocks, then the mean over all places, then a head."""

    def __init__(self, family: Family, depth: int = DEPTH) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(family.block() for _ in range(depth))
        self.head = nn.Linear(WIDTH, CLASSES)
        self.channels = 1 if family.name == "cnn" else -1

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        if self.channels == 1:
            x = x.mean((2, 3))
        elif x.dim() == 3:
            x = x.mean(1)
        return torch.as_tensor(self.head(x))


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def batches(family: Family, seed: int = 7) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(family.inputs, generator=generator)
    return [(x, torch.randint(CLASSES, (family.inputs[0],), generator=generator))]


def healthy(family: Family, depth: int = DEPTH) -> hs.Recipe:
    return hs.Recipe(
        name=family.name,
        model=lambda: Net(family, depth),
        loss_fn=cross_entropy,
        batches=lambda: batches(family),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        unit="samples",
    )
