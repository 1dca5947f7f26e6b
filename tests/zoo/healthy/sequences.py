"""From text to text: T5 and its kin, BART."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

import halfstep as hs
from zoo.case import healthy
from zoo.data import padding, tokens
from zoo.recipes import of_transformers, recipe

VOCABULARY = 512
T5_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 96,
    "d_kv": 24,
    "d_ff": 192,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
}


def pairs(count: int = 4, length: int = 32) -> list[dict[str, Tensor]]:
    """A text and its beginning backwards, padded at the end.

    Args:
        count: Of texts in a batch.
        length: Of the texts.
    """
    batches = []
    for seed in range(4):
        text, present = tokens(count, length, VOCABULARY, seed), padding(count, length, seed)
        labels = text[:, : length // 2].flip(1)
        batches.append(
            {
                "input_ids": text.masked_fill(present == 0, 0),
                "attention_mask": present,
                "labels": labels.masked_fill(present[:, ::2] == 0, -100),
            }
        )
    return batches


def _made(name: str, config: str, sizes: dict[str, Any]) -> hs.Recipe:
    def model() -> nn.Module:
        import transformers

        made = getattr(transformers, config)(**sizes)
        return transformers.AutoModelForSeq2SeqLM.from_config(made)

    return recipe(name, model, of_transformers, pairs())


@healthy("transformers")
def t5() -> hs.Recipe:
    return _made("t5", "T5Config", T5_SIZES)


@healthy("transformers")
def mt5() -> hs.Recipe:
    return _made("mt5", "MT5Config", {**T5_SIZES, "feed_forward_proj": "gated-gelu"})


@healthy("transformers")
def switch() -> hs.Recipe:
    sizes = {**T5_SIZES, "num_experts": 4, "expert_capacity": 64, "num_sparse_encoder_layers": 1}
    return _made("switch", "SwitchTransformersConfig", sizes)


@healthy("transformers")
def bart() -> hs.Recipe:
    sizes = {
        "vocab_size": VOCABULARY,
        "d_model": 96,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 192,
        "decoder_ffn_dim": 192,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
        "forced_eos_token_id": None,
    }
    return _made("bart", "BartConfig", sizes)
