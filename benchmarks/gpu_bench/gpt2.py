"""GPT-2: learned positions, pre-norm blocks, output weights tied to the embedding.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"; the sizes of the
smallest model, 124 million parameters. `forward` returns the loss, so that a compiled model
compiles the loss too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """Sizes of a GPT-2."""

    layers: int
    width: int
    heads: int
    context: int
    vocabulary: int


PUBLISHED = Shape(layers=12, width=768, heads=12, context=1024, vocabulary=50257)
# As PUBLISHED, the vocabulary filled up to a multiple of 64, as tuned training does.
PADDED = Shape(layers=12, width=768, heads=12, context=1024, vocabulary=50304)
TINY = Shape(layers=1, width=16, heads=2, context=8, vocabulary=32)


class Block(nn.Module):
    """Attention and an MLP, each behind a LayerNorm and beside a residual connection."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.before_attention = nn.LayerNorm(shape.width)
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)
        self.before_mlp = nn.LayerNorm(shape.width)
        self.up = nn.Linear(shape.width, 4 * shape.width)
        self.down = nn.Linear(4 * shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        batch, context, width = x.shape
        qkv = self.qkv(self.before_attention(x)).view(batch, context, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, context, width))
        hidden = F.gelu(self.up(self.before_mlp(x)), approximate="tanh")
        result: Tensor = x + self.down(hidden)
        return result


class GPT2(nn.Module):
    """Tokens and the tokens that follow them -> mean cross-entropy."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
