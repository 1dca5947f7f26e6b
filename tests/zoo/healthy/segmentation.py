"""Segmentation: U-Net and its kin of segmentation_models_pytorch, torchvision's, SegFormer."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import halfstep as hs
from zoo.case import healthy
from zoo.data import scenes
from zoo.recipes import of_transformers, recipe

CLASSES = 5
Batch = tuple[Tensor, Tensor]


def batches(count: int = 8, size: int = 64) -> list[Batch]:
    """Images and the class of each pixel, 0 for the background.

    Args:
        count: Of images in a batch.
        size: Of an image.
    """
    made = [scenes(count, size, CLASSES - 1, seed) for seed in range(4)]
    return [(pictures, masks) for pictures, masks, _ in made]


def pixels(model: nn.Module, batch: Batch) -> Tensor:
    """Cross entropy of all pixels; few of them are marked as not to be asked, as at borders.

    Args:
        model: Images to logits.
        batch: Images and classes of pixels.
    """
    return F.cross_entropy(model(batch[0]), batch[1], ignore_index=255)


def _made(name: str, **settings: Any) -> Any:
    def model() -> nn.Module:
        import segmentation_models_pytorch as smp

        made: nn.Module = getattr(smp, name)(
            encoder_weights=None, in_channels=3, classes=CLASSES, **settings
        )
        return made

    return model


@healthy("segmentation_models_pytorch")
def unet() -> hs.Recipe:
    model = _made("Unet", encoder_name="resnet18", encoder_depth=3, decoder_channels=(48, 32, 16))
    return recipe("unet", model, pixels, batches(4))


@healthy("segmentation_models_pytorch")
def deeplabv3plus() -> hs.Recipe:
    model = _made("DeepLabV3Plus", encoder_name="resnet18", decoder_channels=64)
    return recipe("deeplabv3plus", model, pixels, batches())


@healthy("segmentation_models_pytorch")
def fpn_dice() -> hs.Recipe:
    """With the Dice loss of the same package beside cross entropy."""

    def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
        from segmentation_models_pytorch.losses import DiceLoss

        logits = model(batch[0])
        dice = DiceLoss("multiclass", ignore_index=255)(logits, batch[1])
        return F.cross_entropy(logits, batch[1], ignore_index=255) + torch.as_tensor(dice)

    model = _made(
        "FPN",
        encoder_name="mobilenet_v2",
        encoder_depth=4,
        upsampling=2,
        decoder_pyramid_channels=48,
        decoder_segmentation_channels=32,
    )
    return recipe("fpn_dice", model, loss_fn, batches(4))


@healthy("torchvision")
def lraspp() -> hs.Recipe:
    def model() -> nn.Module:
        from torchvision.models.segmentation import lraspp_mobilenet_v3_large

        made: nn.Module = lraspp_mobilenet_v3_large(
            weights=None, weights_backbone=None, num_classes=CLASSES
        )
        return made

    def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch[0])["out"], batch[1])

    return recipe("lraspp", model, loss_fn, batches(8, 96))


@healthy("transformers")
def segformer() -> hs.Recipe:
    def model() -> nn.Module:
        from transformers import SegformerConfig, SegformerForSemanticSegmentation

        return SegformerForSemanticSegmentation(
            SegformerConfig(
                hidden_sizes=[16, 32, 64, 96],
                depths=[1, 1, 1, 1],
                num_attention_heads=[1, 2, 4, 4],
                decoder_hidden_size=64,
                num_labels=CLASSES,
            )
        )

    named = [{"pixel_values": image, "labels": mask} for image, mask in batches(4)]
    return recipe("segformer", model, of_transformers, named)
