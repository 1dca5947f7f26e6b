"""Models of images and text together."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import halfstep as hs
from zoo.case import healthy
from zoo.data import images, tokens
from zoo.recipes import of_transformers, recipe

VOCABULARY = 256
SIZE = 32
TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 16,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
PICTURE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": SIZE,
    "patch_size": 8,
}


def _pairs(count: int = 8) -> list[dict[str, Any]]:
    """Images with texts whose first words name the class."""
    batches = []
    for seed in range(4):
        pictures, labels = images(count, SIZE, seed=seed)
        text = tokens(count, 12, VOCABULARY, seed)
        text[:, 0], text[:, 1] = 1, 20 + labels
        text[:, -1] = 2
        batches.append({"input_ids": text, "pixel_values": pictures, "return_loss": True})
    return batches


@healthy("transformers")
def clip() -> hs.Recipe:
    def model() -> nn.Module:
        from transformers import CLIPConfig, CLIPModel

        return CLIPModel(CLIPConfig(text_config=TEXT, vision_config=PICTURE, projection_dim=32))

    return recipe("clip", model, of_transformers, _pairs())


@healthy("transformers")
def siglip() -> hs.Recipe:
    def model() -> nn.Module:
        from transformers import SiglipConfig, SiglipModel

        return SiglipModel(
            SiglipConfig(text_config={**TEXT, "projection_size": 64}, vision_config=PICTURE)
        )

    return recipe("siglip", model, of_transformers, _pairs())


@healthy("transformers")
def vilt() -> hs.Recipe:
    """Answers about an image: the class of its disc."""

    def model() -> nn.Module:
        from transformers import ViltConfig, ViltForQuestionAnswering

        return ViltForQuestionAnswering(
            ViltConfig(
                **{k: v for k, v in TEXT.items() if k not in ("bos_token_id", "eos_token_id")},
                image_size=SIZE,
                patch_size=8,
                max_image_length=-1,
                num_labels=10,
            )
        )

    def batch(seed: int) -> dict[str, Tensor]:
        pictures, labels = images(8, SIZE, seed=seed)
        return {
            "input_ids": tokens(8, 10, VOCABULARY, seed),
            "pixel_values": pictures,
            "labels": torch.nn.functional.one_hot(labels, 10).float(),
        }

    return recipe("vilt", model, of_transformers, [batch(seed) for seed in range(4)])
