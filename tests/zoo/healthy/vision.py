"""Image classifiers of timm, at small sizes."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

import halfstep as hs
from zoo.case import healthy
from zoo.data import images
from zoo.recipes import recipe

CLASSES = 10


def classifier(name: str, size: int = 64, count: int = 8, **settings: Any) -> hs.Recipe:
    """A classifier of timm by its name there, with random weights.

    Args:
        name: In timm's list.
        size: Of the images.
        count: Of images in a batch.
        settings: For ``timm.create_model``.
    """

    def model() -> nn.Module:
        import timm

        made = timm.create_model(name, num_classes=CLASSES, pretrained=False, **settings)
        if not isinstance(made, nn.Module):
            raise TypeError(f"timm made no module for {name}.")
        return made

    batches = [images(count, size, CLASSES, seed) for seed in range(4)]
    return recipe(name, model, cross_entropy, batches)


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """With label smoothing, as these models are trained.

    Args:
        model: Images to logits.
        batch: Images and classes.
    """
    return F.cross_entropy(model(batch[0]), batch[1], label_smoothing=0.1)


@healthy("timm")
def beit() -> hs.Recipe:
    return classifier("beit_base_patch16_224", img_size=64, embed_dim=96, depth=4, num_heads=4)


@healthy("timm")
def convnext_atto() -> hs.Recipe:
    return classifier("convnext_atto", depths=(1, 1, 2, 1))


@healthy("timm")
def densenet() -> hs.Recipe:
    return classifier("densenet121", size=96, count=16, growth_rate=12, block_config=(2, 4, 4, 2))


@healthy("timm")
def efficientnet_b0() -> hs.Recipe:
    return classifier("efficientnet_b0", count=16, drop_path_rate=0.2)


@healthy("timm")
def ghostnet() -> hs.Recipe:
    return classifier("ghostnet_050", size=96, count=16)


@healthy("timm")
def levit() -> hs.Recipe:
    return classifier("levit_128s", size=224, count=16, depth=(1, 1, 1))


@healthy("timm")
def mlp_mixer() -> hs.Recipe:
    return classifier("mixer_s16_224", img_size=64)


@healthy("timm")
def mobilenetv3_small() -> hs.Recipe:
    return classifier("mobilenetv3_small_050", size=96, count=16)


@healthy("timm")
def mobilevit() -> hs.Recipe:
    return classifier("mobilevit_xxs", size=96)


@healthy("timm")
def nf_regnet() -> hs.Recipe:
    return classifier("nf_regnet_b0")


@healthy("timm")
def regnetx() -> hs.Recipe:
    return classifier("regnetx_002", size=96, count=16)


@healthy("timm")
def resnet10t() -> hs.Recipe:
    return classifier("resnet10t", size=96, count=16)


@healthy("timm")
def swin() -> hs.Recipe:
    return classifier(
        "swin_tiny_patch4_window7_224",
        img_size=56,
        size=56,
        embed_dim=48,
        depths=(2, 2),
        num_heads=(2, 4),
    )


@healthy("timm")
def vit_tiny() -> hs.Recipe:
    return classifier("vit_tiny_patch16_224", img_size=64, depth=6)


@healthy("timm")
def xcit() -> hs.Recipe:
    return classifier("xcit_nano_12_p16_224", img_size=64, depth=4)


@healthy("timm")
def vit_checkpointed() -> hs.Recipe:
    base = classifier("vit_tiny_patch16_224", img_size=64, depth=4)
    fresh = base.model

    def model() -> Any:
        made = fresh()
        made.set_grad_checkpointing(True)
        return made

    return hs.Recipe("vit_checkpointed", model, base.loss_fn, base.batches, base.optimizer)
