"""What is trained: GPT-2 124M and ResNet-50, and the same models at tiny sizes for tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from benchmarks.gpu_bench import gpt2, resnet50

Batch = tuple[Tensor, Tensor]
MAX_NORM = 1.0


@dataclass(frozen=True)
class Workload:
    """A model, its optimizer and its batches.

    Attributes:
        name: For the tables.
        model: Makes the model; its forward takes a batch and returns the loss.
        optimizer: Makes the optimizer of a model; further options go to it.
        batch: Makes a batch of so many samples on a device.
        samples: In a micro-batch.
        unit: What speed is given in, and how many of it a sample has.
    """

    name: str
    model: Callable[[], nn.Module]
    optimizer: Callable[..., Optimizer]
    batch: Callable[[int, torch.device], Batch]
    samples: int
    unit: tuple[str, int]

    def on(self, device: torch.device) -> nn.Module:
        """The model on the device, the same at every call."""
        torch.manual_seed(0)
        with device:
            model = self.model()
        if _has_images(model):
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model


def gpt2_workload(shape: gpt2.Shape, samples: int) -> Workload:
    """GPT-2 as it is trained: AdamW, no decay of biases and norms."""

    def batch(count: int, device: torch.device) -> Batch:
        tokens = torch.randint(shape.vocabulary, (count, shape.context + 1), device=device)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    return Workload(
        "GPT-2", lambda: gpt2.GPT2(shape), adamw, batch, samples, ("tokens", shape.context)
    )


def resnet_workload(shape: resnet50.Shape, samples: int) -> Workload:
    """ResNet-50 as it is trained: SGD with momentum, images and weights in channels_last."""

    def batch(count: int, device: torch.device) -> Batch:
        images = torch.randn(count, 3, shape.side, shape.side, device=device)
        classes = torch.randint(shape.classes, (count,), device=device)
        return images.to(memory_format=torch.channels_last), classes

    return Workload("ResNet-50", lambda: resnet50.ResNet(shape), sgd, batch, samples, ("images", 1))


def adamw(model: nn.Module, **options: bool) -> Optimizer:
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    groups: list[dict[str, Any]] = [
        {"params": matrices}, {"params": others, "weight_decay": 0.0}
    ]  # fmt: skip
    return AdamW(
        [group for group in groups if group["params"]], lr=1e-4, betas=(0.9, 0.95), **options
    )


def sgd(model: nn.Module, **options: bool) -> Optimizer:
    return SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, **options)


def _has_images(model: nn.Module) -> bool:
    return any(isinstance(module, nn.Conv2d) for module in model.modules())
