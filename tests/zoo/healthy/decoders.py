"""Causal language models: transformers' own, and one of x-transformers; state spaces too."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import halfstep as hs
from zoo.case import healthy
from zoo.data import tokens
from zoo.recipes import of_transformers, recipe

VOCABULARY = 512
LENGTH = 48
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def causal(name: str, config: str, count: int = 4, **settings: Any) -> hs.Recipe:
    """A causal language model of transformers, with random weights.

    Args:
        name: Of the case.
        config: Name of its configuration class.
        count: Of texts in a batch.
        settings: For the configuration; ``None`` leaves one of `SIZES` out.
    """
    sizes = {k: v for k, v in {**SIZES, **settings}.items() if v is not None}

    def model() -> nn.Module:
        import transformers

        made = getattr(transformers, config)(**sizes)
        return transformers.AutoModelForCausalLM.from_config(made)

    return recipe(name, model, of_transformers, texts(count))


def texts(count: int, length: int = LENGTH) -> list[dict[str, Tensor]]:
    """Batches of texts whose labels are the texts.

    Args:
        count: Of texts in a batch.
        length: Of a text.
    """
    drawn = [tokens(count, length, VOCABULARY, seed) for seed in range(4)]
    return [{"input_ids": text, "labels": text} for text in drawn]


@healthy("transformers")
def gpt2() -> hs.Recipe:
    return causal("gpt2", "GPT2Config", intermediate_size=None, attn_implementation="eager")


@healthy("transformers")
def gpt2_checkpointed() -> hs.Recipe:
    return _checkpointed(gpt2(), use_reentrant=False)


@healthy("transformers")
def llama() -> hs.Recipe:
    return causal("llama", "LlamaConfig", num_key_value_heads=2)


@healthy("transformers")
def llama_checkpointed_reentrant() -> hs.Recipe:
    return _checkpointed(llama(), use_reentrant=True)


@healthy("transformers")
def qwen3() -> hs.Recipe:
    return causal("qwen3", "Qwen3Config", num_key_value_heads=2, head_dim=24)


@healthy("transformers")
def gemma2() -> hs.Recipe:
    return causal(
        "gemma2", "Gemma2Config", num_key_value_heads=2, head_dim=24, attn_implementation="eager"
    )


@healthy("transformers")
def gpt_neox() -> hs.Recipe:
    return causal("gpt_neox", "GPTNeoXConfig")


@healthy("transformers")
def bloom() -> hs.Recipe:
    return causal("bloom", "BloomConfig", n_layer=3, n_head=4, intermediate_size=None)


@healthy("transformers")
def mixtral() -> hs.Recipe:
    return causal(
        "mixtral",
        "MixtralConfig",
        num_key_value_heads=2,
        num_local_experts=4,
        output_router_logits=True,
    )


@healthy("transformers")
def qwen2_moe() -> hs.Recipe:
    return causal(
        "qwen2_moe",
        "Qwen2MoeConfig",
        num_key_value_heads=2,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=64,
        output_router_logits=True,
    )


@healthy("transformers")
def mamba() -> hs.Recipe:
    return causal("mamba", "MambaConfig", count=2, state_size=8)


@healthy("transformers")
def mamba2() -> hs.Recipe:
    return causal(
        "mamba2", "Mamba2Config", count=2, state_size=16, num_heads=8, head_dim=24, n_groups=1
    )


@healthy("transformers")
def rwkv() -> hs.Recipe:
    return causal("rwkv", "RwkvConfig", count=2, attention_hidden_size=96)


@healthy("x_transformers")
def x_decoder() -> hs.Recipe:
    def model() -> nn.Module:
        from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

        layers = Decoder(
            dim=96,
            depth=3,
            heads=4,
            rotary_pos_emb=True,
            use_rmsnorm=True,
            ff_glu=True,
            attn_qk_norm=True,
        )
        return AutoregressiveWrapper(
            TransformerWrapper(num_tokens=VOCABULARY, max_seq_len=LENGTH, attn_layers=layers)
        )

    def loss_fn(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return torch.as_tensor(model(batch["input_ids"]))

    return recipe("x_decoder", model, loss_fn, texts(4))


def _checkpointed(base: hs.Recipe, use_reentrant: bool) -> hs.Recipe:
    fresh = base.model

    def model() -> Any:
        made = fresh()
        made.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
        made.enable_input_require_grads()
        return made

    name = f"{base.name}_checkpointed"
    return hs.Recipe(name, model, base.loss_fn, base.batches, base.optimizer)
