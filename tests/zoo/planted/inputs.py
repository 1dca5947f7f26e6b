"""What is wrong before an op runs: the batch, a buffer, a weight."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

import halfstep as hs
from zoo.case import EVERY, Truth, planted
from zoo.healthy.vision import classifier
from zoo.planted.attention import changed
from zoo.planted.bases import (
    LENGTH,
    VOCABULARY,
    WIDTH,
    Convolutions,
    Decoder,
    class_of_image,
    decoder,
    next_token,
    pictures,
    texts,
)
from zoo.recipes import recipe


@planted(
    Truth(
        ("bad_batch",),
        ("",),
        (),
        "",
        EVERY,
        is_precision=False,
        subject="batch[0]",
        why="One pixel of one image is NaN; BatchNorm spreads it over the batch.",
    )
)
def bad_sample() -> hs.Recipe:
    batches = []
    for image, label in pictures():
        image[5, 1, 7, 7] = math.nan
        batches.append((image, label))
    return recipe("bad_sample", Convolutions, class_of_image, batches)


@planted(
    Truth(
        ("poisoned_buffer",),
        ("layer2.0.bn1",),
        (),
        "",
        EVERY,
        is_precision=False,
        subject="layer2.0.bn1.running_var",
        why="A frozen BatchNorm of a pretrained backbone has a NaN in its running variance.",
    ),
    "timm",
)
def poisoned_running_variance() -> hs.Recipe:
    def change(model: Any) -> None:
        norm = model.layer2[0].bn1
        norm.running_var[3] = math.nan
        norm.eval()

    base = classifier("resnet10t", size=64)
    return changed(base, "poisoned_running_variance", change)


class Places(nn.Module):
    """Text with a table of positions that is no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        places = torch.arange(LENGTH).float()[:, None]
        rates = torch.arange(WIDTH).float()[None, :]
        # log(0) * 0: the first value is NaN
        self.register_buffer("places", torch.sin(places.log() * rates))

    def forward(self, text: Tensor) -> Tensor:
        return torch.as_tensor(self.table(text) + self.places[: text.shape[1]])


@planted(
    Truth(
        ("poisoned_buffer",),
        ("embed",),
        (),
        "",
        EVERY,
        is_precision=False,
        subject="embed.places",
        why="The table of positions was made with log(0) and holds NaN in its first row.",
    )
)
def poisoned_table() -> hs.Recipe:
    def plant(model: Decoder) -> None:
        model.embed = Places()

    return decoder("poisoned_table", plant)


@planted(
    Truth(
        ("bad_weights",),
        ("blocks.1.mlp.0",),
        (),
        "",
        EVERY,
        is_precision=False,
        subject="blocks.1.mlp.0.weight",
        why="One weight was above 65504 when the checkpoint was saved in FP16, and is inf now.",
    )
)
def weight_from_half_checkpoint() -> hs.Recipe:
    def plant(model: Decoder) -> None:
        with torch.no_grad():
            weight = model.blocks[1].mlp[0].weight
            weight[2, 3] = 70000.0
            weight.copy_(weight.half().float())

    return decoder("weight_from_half_checkpoint", plant)


@planted(
    Truth(
        ("overflow",),
        ("body.6",),
        ("addmm", "mm"),
        "forward",
        EVERY,
        is_precision=False,
        why="After a step with a learning rate of 1e12 the weights are about 1e12; the fourth"
        " product is beyond FP32.",
    )
)
def learning_rate_too_high() -> hs.Recipe:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(VOCABULARY, WIDTH)
            layers: list[nn.Module] = []
            for _ in range(4):
                layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
            self.body = nn.Sequential(*layers)
            self.head = nn.Linear(WIDTH, VOCABULARY)
            with torch.no_grad():
                for layer in self.body:
                    if isinstance(layer, nn.Linear):
                        layer.weight.normal_(std=1e9)

        def forward(self, text: Tensor) -> Tensor:
            return torch.as_tensor(self.head(self.body(self.embed(text))))

    return recipe("learning_rate_too_high", Plain, next_token, texts())
