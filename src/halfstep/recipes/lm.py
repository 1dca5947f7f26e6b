"""``lm``: a byte-level Transformer on the English text that Python itself ships.

The text is the help of the language reference (`pydoc_data.topics`), about 700 kB. The model is
small enough for FP16 on a CPU without half arithmetic, where a product takes 10 to 80 times as
long as in FP32.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halfstep.training import LossSum, Recipe

_CONTEXT = 64
_BATCH = 8
_WIDTH = 64
_LAYERS = 2
_HEADS = 4
_VOCABULARY = 256  # bytes


class Batch(NamedTuple):
    """Token ids, and the same shifted by one: what comes next. Both int64, (batch, context)."""

    x: Tensor
    y: Tensor


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(_WIDTH)
        self.qkv = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.proj = nn.Linear(_WIDTH, _WIDTH)
        self.norm2 = nn.LayerNorm(_WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(_WIDTH, 4 * _WIDTH), nn.GELU(), nn.Linear(4 * _WIDTH, _WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(batch, context, width) to the same."""
        batch, context, _ = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, context, 3, _HEADS, -1).permute(2, 0, 3, 1, 4)
        q, k, v = heads.unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, context, _WIDTH))
        return x + torch.as_tensor(self.mlp(self.norm2(x)))


class ByteTransformer(nn.Module):
    """Embeddings, blocks, and a head over 256 bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(_VOCABULARY, _WIDTH)
        self.position = nn.Embedding(_CONTEXT, _WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(_LAYERS)))
        self.norm = nn.LayerNorm(_WIDTH)
        self.head = nn.Linear(_WIDTH, _VOCABULARY, bias=False)
        self.head.weight = self.token.weight
        nn.init.normal_(self.token.weight, std=0.2)

    def forward(self, x: Tensor) -> Tensor:
        """Token ids (batch, context) to logits (batch, context, 256)."""
        positions = torch.arange(x.shape[1], device=x.device)
        hidden = self.token(x) + self.position(positions)
        logits: Tensor = self.head(self.norm(self.blocks(hidden)))
        return logits


@functools.cache
def _text() -> tuple[Tensor, Tensor]:
    """Training and validation bytes: every tenth topic is held out."""
    from pydoc_data.topics import topics

    names = sorted(topics)
    held_out = set(names[::10])

    def joined(chosen: list[str]) -> Tensor:
        text = "\n\n".join(topics[name] for name in chosen)
        return torch.tensor(list(text.encode()), dtype=torch.int64)

    return joined([n for n in names if n not in held_out]), joined(sorted(held_out))


def _cut(data: Tensor, starts: Tensor) -> Batch:
    offsets = starts[:, None] + torch.arange(_CONTEXT)
    return Batch(data[offsets], data[offsets + 1])


def _batches() -> Iterator[Batch]:
    """Random excerpts without end; the order is fixed by a seed of its own."""
    data = _text()[0]
    generator = torch.Generator().manual_seed(0)
    while True:
        yield _cut(data, torch.randint(len(data) - _CONTEXT - 1, (_BATCH,), generator=generator))


def _loss(model: nn.Module, batch: Batch) -> LossSum:
    logits = model(batch.x)
    total = F.cross_entropy(logits.flatten(0, 1), batch.y.flatten(), reduction="sum")
    return LossSum(total, batch.y.numel())


def _validate(model: nn.Module) -> dict[str, float]:
    """Mean loss in nats per byte over 64 evenly spaced excerpts of the held-out topics."""
    data = _text()[1]
    starts = torch.linspace(0, len(data) - _CONTEXT - 2, 64).long()
    device = next(model.parameters()).device
    batch = _cut(data, starts)
    logits = model(batch.x.to(device))
    loss = F.cross_entropy(logits.flatten(0, 1).float(), batch.y.to(device).flatten())
    return {"val_loss": float(loss)}


def build() -> Recipe:
    """The recipe."""
    return Recipe(
        name="lm",
        model=ByteTransformer,
        loss_fn=_loss,
        batches=_batches,
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=3e-3),
        validate=_validate,
    )
