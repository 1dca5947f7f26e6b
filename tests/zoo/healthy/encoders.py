"""Encoders of text: masked language models, a detector of replaced tokens, a classifier."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import halfstep as hs
from zoo.case import healthy
from zoo.data import masked, padding, tokens
from zoo.recipes import of_transformers, recipe

VOCABULARY = 512
LENGTH = 40
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}


def masked_language(name: str, config: str, **settings: Any) -> hs.Recipe:
    """A masked language model on padded texts.

    Args:
        name: Of the case.
        config: Name of its configuration class.
        settings: For the configuration.
    """

    def model() -> nn.Module:
        import transformers

        made = getattr(transformers, config)(**{**SIZES, **settings})
        return transformers.AutoModelForMaskedLM.from_config(made)

    return recipe(name, model, of_transformers, [_masked(seed) for seed in range(4)])


def _masked(seed: int) -> dict[str, Tensor]:
    present = padding(4, LENGTH, seed)
    text = tokens(4, LENGTH, VOCABULARY, seed)
    inputs, labels = masked(text, 4, seed)
    return {
        "input_ids": inputs.masked_fill(present == 0, 0),
        "attention_mask": present,
        "labels": labels.masked_fill(present == 0, -100),
    }


@healthy("transformers")
def bert() -> hs.Recipe:
    return masked_language("bert", "BertConfig")


@healthy("transformers")
def bert_checkpointed() -> hs.Recipe:
    base = masked_language("bert_checkpointed", "BertConfig")
    fresh = base.model

    def model() -> Any:
        made = fresh()
        made.gradient_checkpointing_enable({"use_reentrant": False})
        return made

    return hs.Recipe(base.name, model, base.loss_fn, base.batches, base.optimizer)


@healthy("transformers")
def deberta_v2() -> hs.Recipe:
    return masked_language(
        "deberta_v2",
        "DebertaV2Config",
        relative_attention=True,
        position_buckets=16,
        pos_att_type=["p2c", "c2p"],
        share_att_key=True,
        norm_rel_ebd="layer_norm",
        position_biased_input=False,
        type_vocab_size=0,
    )


@healthy("transformers")
def modernbert() -> hs.Recipe:
    return masked_language(
        "modernbert",
        "ModernBertConfig",
        global_attn_every_n_layers=3,
        local_attention=16,
        bos_token_id=1,
        cls_token_id=1,
        eos_token_id=2,
        sep_token_id=2,
    )


@healthy("transformers")
def electra() -> hs.Recipe:
    """Which tokens were replaced: one bit for each, BCE with logits."""

    def model() -> nn.Module:
        from transformers import ElectraConfig, ElectraForPreTraining

        return ElectraForPreTraining(ElectraConfig(**SIZES, embedding_size=64))

    def batch(seed: int) -> dict[str, Tensor]:
        text, other = (tokens(4, LENGTH, VOCABULARY, s) for s in (seed, seed + 100))
        replaced = torch.rand(text.shape, generator=torch.Generator().manual_seed(seed)) < 0.15
        return {
            "input_ids": torch.where(replaced, other, text),
            "attention_mask": padding(4, LENGTH, seed),
            "labels": (replaced & (text != other)).long(),
        }

    return recipe("electra", model, of_transformers, [batch(seed) for seed in range(4)])


@healthy("transformers")
def albert() -> hs.Recipe:
    """A classifier of texts with shared layers: the class is that of the commonest tokens."""

    def model() -> nn.Module:
        from transformers import AlbertConfig, AlbertForSequenceClassification

        return AlbertForSequenceClassification(
            AlbertConfig(**SIZES, embedding_size=48, num_labels=3)
        )

    def batch(seed: int) -> dict[str, Tensor]:
        text = tokens(8, LENGTH, VOCABULARY, seed)
        return {
            "input_ids": text,
            "attention_mask": padding(8, LENGTH, seed),
            "labels": text.float().median(1).values.long() % 3,
        }

    return recipe("albert", model, of_transformers, [batch(seed) for seed in range(4)])
