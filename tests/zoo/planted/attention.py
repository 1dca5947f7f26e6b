"""Faults in attention, experts and gated products."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import halfstep as hs
from zoo.case import EVERY, FP16, HALVES, Truth, planted
from zoo.healthy.decoders import causal
from zoo.healthy.image_and_text import clip
from zoo.healthy.sequences import t5
from zoo.planted.bases import WIDTH, Attention, Decoder, decoder


def changed(base: hs.Recipe, name: str, change: Any) -> hs.Recipe:
    """A recipe whose model is changed, without gradients, after it is made.

    Args:
        base: The healthy recipe.
        name: Of the case.
        change: Called with the model.
    """

    def model() -> Any:
        made = base.model()
        with torch.no_grad():
            change(made)
        return made

    return hs.Recipe(name, model, base.loss_fn, base.batches, base.optimizer)


@planted(
    Truth(
        ("overflow", "silent_difference"),
        ("model.layers.1.self_attn",),
        ("bmm", "mm"),
        "forward",
        HALVES,
        why="q and k are equal and about 90, so that the product of a token with itself is 2e5"
        " before it is divided by the root of the head's width; in BF16 it has steps of 1024, and"
        " tokens that stand twice in a text cannot be told apart.",
    ),
    "transformers",
)
def attention_logits() -> hs.Recipe:
    base = causal(
        "attention_logits", "LlamaConfig", num_key_value_heads=4, attn_implementation="eager"
    )

    def change(model: Any) -> None:
        attention = model.model.layers[1].self_attn
        attention.q_proj.weight.normal_(std=9.3)
        attention.k_proj.weight.copy_(attention.q_proj.weight)

    return changed(base, "attention_logits", change)


@planted(
    Truth(
        ("overflow", "silent_difference"),
        ("",),
        ("mul",),
        "forward",
        HALVES,
        why="The learned temperature has no bound and came to exp(12.5) = 2.7e5; the product with"
        " cosines that are in 16 bits does not fit FP16, and BF16 has no digits for it.",
    ),
    "transformers",
)
def contrastive_temperature() -> hs.Recipe:
    return changed(clip(), "contrastive_temperature", lambda m: m.logit_scale.fill_(12.5))


@planted(
    Truth(
        ("overflow",),
        ("model.layers.1.mlp.experts",),
        ("mul",),
        "forward",
        FP16,
        why="Gate and value of expert 2 are about 600 each; their product is divided again by"
        " the small weights that follow.",
    ),
    "transformers",
)
def experts_gated_product() -> hs.Recipe:
    base = causal(
        "experts_gated_product",
        "Qwen2MoeConfig",
        num_key_value_heads=2,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=64,
        experts_implementation="eager",
    )

    def change(model: Any) -> None:
        experts = model.model.layers[1].mlp.experts
        experts.gate_up_proj[2].normal_(std=60.0)
        experts.down_proj[2].normal_(std=1e-7)

    return changed(base, "experts_gated_product", change)


@planted(
    Truth(
        ("overflow",),
        ("model.layers.1.mlp",),
        ("mul",),
        "forward",
        FP16,
        why="The two halves of the gated product are about 600 each.",
    ),
    "transformers",
)
def llama_gated_product() -> hs.Recipe:
    def change(model: Any) -> None:
        mlp = model.model.layers[1].mlp
        mlp.gate_proj.weight.normal_(std=60.0)
        mlp.up_proj.weight.normal_(std=60.0)
        mlp.down_proj.weight.normal_(std=1e-7)

    base = causal("llama_gated_product", "LlamaConfig", num_key_value_heads=2)
    return changed(base, "llama_gated_product", change)


@planted(
    Truth(
        ("overflow",),
        ("encoder.block.1.layer.1.DenseReluDense.wo",),
        ("mm", "addmm"),
        "forward",
        FP16,
        why="The second product of a feed-forward part gives about 3e5, which the normalisation of"
        " the next block takes away again: models that were trained in BF16 are like that.",
    ),
    "transformers",
)
def t5_feed_forward() -> hs.Recipe:
    def change(model: Any) -> None:
        part = model.encoder.block[1].layer[1].DenseReluDense
        part.wi.weight.normal_(std=10.0)
        part.wo.weight.normal_(std=300.0)

    return changed(t5(), "t5_feed_forward", change)


class LinearAttention(Attention):
    """Keys and values are summed over the whole text before the queries see them."""

    def _mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = F.elu(q) + 1.0, F.elu(k * 24.0) + 1.0
        context = k.transpose(-2, -1) @ (v * 200.0)
        weight = (q * k.mean(-2, keepdim=True)).mean(-1, keepdim=True) + 1e-3
        return (q @ (context * 1e-4)) / weight


@planted(
    Truth(
        ("overflow",),
        ("blocks.1.attn",),
        ("bmm",),
        "forward",
        FP16,
        why="Features of about 15 times values of about 100, summed over 256 tokens, are beyond"
        " 65504 where values share their sign.",
    )
)
def linear_attention_sum() -> hs.Recipe:
    from zoo.planted.bases import next_token, texts
    from zoo.recipes import recipe

    def model() -> nn.Module:
        made = Decoder()
        made.blocks[1].attn = attention = LinearAttention()
        with torch.no_grad():
            attention.qkv.bias[2 * WIDTH :].fill_(1.0)
            attention.qkv.bias[WIDTH : 2 * WIDTH].fill_(0.5)
        return made

    return recipe("linear_attention_sum", model, next_token, texts(2, 256))


class InPlaceSoftmax(Attention):
    """exp without the maximum, in place: autocast casts no op in place."""

    def _mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = (q @ k.transpose(-2, -1)) * 0.25
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, -20.0)
        weights = scores.exp_()
        return (weights / weights.sum(-1, keepdim=True)) @ v


@planted(
    Truth(
        ("overflow",),
        ("blocks.1.attn",),
        ("exp_", "exp"),
        "forward",
        FP16,
        why="The score of a token with itself is about 16, and exp(16) = 9e6.",
    )
)
def softmax_in_place() -> hs.Recipe:
    def plant(model: Decoder) -> None:
        model.blocks[1].attn = attention = InPlaceSoftmax()
        with torch.no_grad():
            attention.qkv.weight[:WIDTH].normal_(std=0.25)
            attention.qkv.weight[WIDTH : 2 * WIDTH].copy_(attention.qkv.weight[:WIDTH])

    return decoder("softmax_in_place", plant)


class Features(Attention):
    """Positive random features: attention as a product of small exponentials."""

    def _mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = self._features(q), self._features(k)
        context = k.transpose(-2, -1) @ v
        weight = q @ k.sum(-2, keepdim=True).transpose(-2, -1)
        return (q @ context) / weight

    def _features(self, x: Tensor) -> Tensor:
        return torch.exp(x - 0.5 * x.square().sum(-1, keepdim=True))


@planted(
    Truth(
        ("underflow",),
        ("blocks.1.attn",),
        ("bmm",),
        "forward",
        FP16,
        why="Features of about exp(-12.7) = 3e-6 fit FP16, their products do not: the normaliser is"
        " 0, and 0/0 follows.",
    )
)
def favor_normaliser() -> hs.Recipe:
    def plant(model: Decoder) -> None:
        model.blocks[1].attn = attention = Features()
        with torch.no_grad():
            attention.qkv.weight[: 2 * WIDTH].mul_(0.2)
            attention.qkv.bias[: 2 * WIDTH].fill_(-1.2)

    return decoder("favor_normaliser", plant)


class AllMasked(Attention):
    """Adds a mask of -inf, for a text that is nothing but padding too."""

    def _mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
        mask = torch.zeros(len(q), 1, 1, q.shape[-2])
        mask[-1] = -torch.inf
        return torch.softmax(scores + mask, -1) @ v


@planted(
    Truth(
        ("invalid_operation",),
        ("blocks.1.attn",),
        ("_softmax",),
        "forward",
        EVERY,
        is_precision=False,
        why="The last text is masked as a whole: softmax of a row of -inf is 0/0 in every format.",
    )
)
def all_masked_row() -> hs.Recipe:
    def plant(model: Decoder) -> None:
        model.blocks[1].attn = AllMasked()

    return decoder("all_masked_row", plant)


class Fills(Attention):
    """Fills the future with a number that FP16 does not have."""

    def _mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return torch.softmax(scores.masked_fill(later, -1e9), -1) @ v


@planted(
    Truth(
        ("cannot_run",),
        ("*",),
        (),
        "",
        FP16,
        why="masked_fill(-1e9) of FP16 scores raises.",
    )
)
def mask_of_minus_1e9() -> hs.Recipe:
    def plant(model: Decoder) -> None:
        for block in model.blocks:
            block.attn = Fills()

    return decoder("mask_of_minus_1e9", plant)
