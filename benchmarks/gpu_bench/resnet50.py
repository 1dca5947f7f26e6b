"""ResNet-50, version 1.5: the stride of a bottleneck is in its 3 x 3 convolution.

Source: He et al. 2015, "Deep Residual Learning for Image Recognition", table 1. `forward` returns
the loss, so that a compiled model compiles the loss too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """Blocks of each stage, channels of the first stage, classes, pixels of a side."""

    blocks: tuple[int, ...]
    width: int
    classes: int
    side: int


PUBLISHED = Shape(blocks=(3, 4, 6, 3), width=64, classes=1000, side=224)
TINY = Shape(blocks=(1, 1), width=4, classes=4, side=16)
EXPANSION = 4  # channels that leave a bottleneck, over those inside


def conv(inside: int, outside: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inside, outside, size, stride, padding=size // 2, bias=False)


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions beside a residual connection."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = width * EXPANSION
        self.conv1, self.norm1 = conv(channels, width, 1), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = conv(width, width, 3, stride), nn.BatchNorm2d(width)
        self.conv3, self.norm3 = conv(width, out, 1), nn.BatchNorm2d(out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(conv(channels, out, 1, stride), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.norm1(self.conv1(x)))
        hidden = F.relu(self.norm2(self.conv2(hidden)))
        return F.relu(self.norm3(self.conv3(hidden)) + self.shortcut(x))


class ResNet(nn.Module):
    """Images and their classes -> mean cross-entropy."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        channels = shape.width
        self.stem = nn.Sequential(
            conv(3, channels, 7, 2), nn.BatchNorm2d(channels), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        stages: list[nn.Module] = []
        for stage, count in enumerate(shape.blocks):
            width = shape.width * 2**stage
            for block in range(count):
                stages.append(Bottleneck(channels, width, 2 if stage and not block else 1))
                channels = width * EXPANSION
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(channels, shape.classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor, classes: Tensor) -> Tensor:
        features = self.stages(self.stem(images)).mean((2, 3))
        return F.cross_entropy(self.head(features), classes)
