"""Detectors: those of torchvision that train without its compiled operators, and transformers'.

Faster R-CNN and Mask R-CNN are left out: in training they suppress overlapping proposals with a
compiled operator, see `zoo.torchvision_operators`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import halfstep as hs
from zoo.case import healthy
from zoo.data import boxes, scenes
from zoo.recipes import of_transformers, recipe

CLASSES = 10
Detections = tuple[list[Tensor], list[dict[str, Tensor]]]


def _batch(count: int, size: int, seed: int) -> Detections:
    pictures, masks, labels = scenes(count, size, CLASSES, seed)
    targets = [
        {"boxes": box, "labels": label[None] + 1}
        for box, label in zip(boxes(masks), labels, strict=True)
    ]
    return list(pictures), targets


def sum_of_losses(model: nn.Module, batch: Detections) -> Tensor:
    """Torchvision's detectors return a dictionary of losses in training.

    Args:
        model: Images and targets to losses.
        batch: Images and targets.
    """
    losses: dict[str, Tensor] = model(batch[0], batch[1])
    return torch.stack([loss.float() for loss in losses.values()]).sum()


def _torchvision(name: str, size: int, **settings: Any) -> hs.Recipe:
    def model() -> nn.Module:
        from torchvision.models import detection

        made = getattr(detection, name)(
            weights=None,
            weights_backbone=None,
            num_classes=CLASSES + 1,
            image_mean=[0.0] * 3,
            image_std=[1.0] * 3,
            **settings,
        )
        if not isinstance(made, nn.Module):
            raise TypeError(f"torchvision made no module for {name}.")
        return made

    return recipe(name, model, sum_of_losses, [_batch(2, size, seed) for seed in range(2)], lr=1e-4)


def _small_pyramid(kind: str) -> hs.Recipe:
    """RetinaNet or FCOS on a ResNet of 18 layers with half of its width in the pyramid."""

    def model() -> nn.Module:
        from torchvision.models import detection, resnet18
        from torchvision.models.detection.backbone_utils import _resnet_fpn_extractor
        from torchvision.ops.feature_pyramid_network import LastLevelP6P7

        backbone = _resnet_fpn_extractor(
            resnet18(weights=None),
            trainable_layers=5,
            returned_layers=[2, 3, 4],
            extra_blocks=LastLevelP6P7(256, 256),
        )
        made: nn.Module = getattr(detection, kind)(
            backbone,
            CLASSES + 1,
            min_size=64,
            max_size=64,
            image_mean=[0.0] * 3,
            image_std=[1.0] * 3,
        )
        return made

    return recipe(kind, model, sum_of_losses, [_batch(2, 64, seed) for seed in range(2)], lr=1e-4)


@healthy("torchvision")
def retinanet() -> hs.Recipe:
    return _small_pyramid("RetinaNet")


@healthy("torchvision")
def fcos() -> hs.Recipe:
    return _small_pyramid("FCOS")


@healthy("torchvision")
def ssdlite() -> hs.Recipe:
    return _torchvision("ssdlite320_mobilenet_v3_large", 320)


def _relative(count: int, size: int, seed: int) -> dict[str, Any]:
    """As the detectors of transformers take it: centre, width and height as shares."""
    pictures, masks, labels = scenes(count, size, CLASSES, seed)
    targets = []
    for box, label in zip(boxes(masks), labels, strict=True):
        left, top, right, bottom = (box[0] / size).unbind()
        centre = torch.stack([(left + right) / 2, (top + bottom) / 2, right - left, bottom - top])
        targets.append({"class_labels": label[None], "boxes": centre[None]})
    return {"pixel_values": pictures, "labels": targets}


@healthy("transformers", "scipy", "timm")
def detr() -> hs.Recipe:
    def model() -> nn.Module:
        from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

        backbone = ResNetConfig(
            embedding_size=16,
            hidden_sizes=[32, 64, 96, 128],
            depths=[1, 1, 1, 1],
            layer_type="basic",
            out_features=["stage4"],
        )
        return DetrForObjectDetection(
            DetrConfig(
                use_timm_backbone=False,
                use_pretrained_backbone=False,
                backbone=None,
                backbone_config=backbone,
                d_model=64,
                encoder_layers=2,
                decoder_layers=2,
                encoder_attention_heads=4,
                decoder_attention_heads=4,
                encoder_ffn_dim=128,
                decoder_ffn_dim=128,
                num_queries=10,
                num_labels=CLASSES,
            )
        )

    return recipe("detr", model, of_transformers, [_relative(4, 128, seed) for seed in range(2)])


@healthy("transformers", "scipy")
def yolos() -> hs.Recipe:
    def model() -> nn.Module:
        from transformers import YolosConfig, YolosForObjectDetection

        return YolosForObjectDetection(
            YolosConfig(
                hidden_size=64,
                num_hidden_layers=3,
                num_attention_heads=4,
                intermediate_size=128,
                image_size=[96, 96],
                patch_size=16,
                num_detection_tokens=10,
                num_labels=CLASSES,
            )
        )

    return recipe("yolos", model, of_transformers, [_relative(4, 96, seed) for seed in range(2)])
