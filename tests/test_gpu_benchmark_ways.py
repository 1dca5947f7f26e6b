"""What `benchmarks/gpu.py` compares: real models, and ways that do the same work."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from accelerate_state import fresh_accelerate
from benchmarks.gpu_bench import gpt2, resnet50, training, updates
from benchmarks.gpu_bench.setup import tiny_workloads
from benchmarks.gpu_bench.trainers import (
    INIT_SCALE,
    DropIn,
    DropInWithClip,
    Halfstep,
    HalfstepWithAverage,
    Stock,
    StockWithAverage,
    Trainer,
)
from benchmarks.gpu_bench.workloads import Batch
from emulated import Counts, emulated_device, inner

DEVICE = torch.device("cuda", 0)


@pytest.fixture
def counts() -> Iterator[Counts]:
    with fresh_accelerate(), emulated_device() as found:
        yield found


def on_meta(make: type[nn.Module], shape: object) -> nn.Module:
    with torch.device("meta"):
        return make(shape)


# ---------------------------------------------------------------------------------- the models


def test_gpt2_has_the_parameters_of_the_published_model() -> None:
    # oracle: 124,439,808 parameters in 148 tensors, as Hugging Face's "gpt2" has them
    model = on_meta(gpt2.GPT2, gpt2.PUBLISHED)
    assert sum(p.numel() for p in model.parameters()) == 124_439_808
    assert len(list(model.parameters())) == 148


def test_gpt2_knows_nothing_at_first_and_looks_at_nothing_that_follows() -> None:
    torch.manual_seed(0)
    model = gpt2.GPT2(gpt2.TINY)
    tokens = torch.randint(32, (4, 8))
    # closed form: all tokens equally likely; weights of 0.02 leave a percent of it
    assert math.isclose(model(tokens, tokens).item(), math.log(32), rel_tol=0.02)
    seen = torch.zeros(4, 8, 16, requires_grad=True)
    inside = model.blocks[0](seen)
    inside[:, 3].sum().backward()
    assert seen.grad is not None
    assert torch.equal(seen.grad[:, 4:], torch.zeros(4, 4, 16))


def test_resnet50_has_the_parameters_and_operations_of_the_published_model() -> None:
    # oracle: torchvision's table: 25,557,032 parameters, 4.09 billion multiply-adds at 224 x 224
    model = on_meta(resnet50.ResNet, resnet50.PUBLISHED)
    assert sum(p.numel() for p in model.parameters()) == 25_557_032
    assert len(list(model.parameters())) == 161
    assert sum(isinstance(module, nn.BatchNorm2d) for module in model.modules()) == 53
    images = torch.empty(1, 3, 224, 224, device="meta")
    with FlopCounterMode(display=False) as counted:
        features = model.stages(model.stem(images))
        model.head(features.mean((2, 3)))
    assert features.shape == (1, 2048, 7, 7)
    assert round(counted.get_total_flops() / 2 / 1e9, 2) == 4.09


def test_images_and_convolutions_are_channels_last(counts: Counts) -> None:
    _, images = tiny_workloads()
    model = images.on(DEVICE)
    weights = [p for p in model.parameters() if p.dim() == 4]
    inputs, _ = images.batch(2, DEVICE)
    for each in [*weights, inputs]:
        assert inner(each).is_contiguous(memory_format=torch.channels_last)


def test_padded_vocabulary_is_the_next_multiple_of_64() -> None:
    assert gpt2.PADDED.vocabulary == math.ceil(gpt2.PUBLISHED.vocabulary / 64) * 64


# ------------------------------------------------------------------------------------ the ways


def weights_after(trainer: Trainer, window: Sequence[Batch], steps: int = 3) -> list[Tensor]:
    for _ in range(steps):
        trainer.step(window)
    return [inner(p).detach().clone() for p in trainer.params]


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("format_name", ["bf16", "fp16"])
@pytest.mark.parametrize("way", [Halfstep, DropIn, DropInWithClip])
def test_every_way_makes_the_steps_of_the_stock_loop(
    counts: Counts, way: type[Trainer], format_name: str, size: int
) -> None:
    # oracle: torch's own loop; the order of roundings differs, and Adam's first steps have the
    # size of the rate whatever the gradient is
    language, _ = tiny_workloads()
    window = [language.batch(2, DEVICE) for _ in range(size)]
    expected = weights_after(Stock(language, format_name, DEVICE), window)
    found = weights_after(way(language, format_name, DEVICE), window)
    for a, b in zip(found, expected, strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-4 * 0.1)  # a tenth of one step
    first = weights_after(way(language, format_name, DEVICE), window, steps=0)
    assert not all(torch.equal(a, b) for a, b in zip(found, first, strict=True))


def test_both_averages_are_the_same(counts: Counts) -> None:
    language, _ = tiny_workloads()
    batch = language.batch(2, DEVICE)
    stock = StockWithAverage(language, "bf16", DEVICE)
    ours = HalfstepWithAverage(language, "bf16", DEVICE)
    for trainer in (stock, ours):
        for _ in range(3):
            trainer.step([batch])
    assert ours.engine.ema is not None
    averages = [list(each.module.parameters()) for each in (stock.average, ours.engine.ema)]
    for a, b in zip(*averages, strict=True):
        assert torch.allclose(inner(a), inner(b), rtol=0, atol=1e-4 * 0.1)


def test_given_gradients_arrive_in_the_scale_of_each_way(counts: Counts) -> None:
    language, _ = tiny_workloads()
    for way, format_name, scale in [
        (Stock, "bf16", 1.0),
        (Stock, "fp16", INIT_SCALE),
        (Halfstep, "fp16", INIT_SCALE),
    ]:
        trainer = way(language, format_name, DEVICE)
        gradients = [torch.randn_like(p) for p in trainer.params]
        updates.backward_of(trainer, gradients)
        for p, gradient in zip(trainer.params, gradients, strict=True):
            assert p.grad is not None
            assert torch.equal(inner(p.grad), inner(gradient) * scale)  # a power of two: exact
        trainer.update()
        assert all(p.grad is None for p in trainer.params)


def test_reading_before_a_step_is_refused(counts: Counts) -> None:
    language, _ = tiny_workloads()
    with pytest.raises(RuntimeError, match=r"read\(\) before the first step\(\)"):
        Halfstep(language, "bf16", DEVICE).read()


@pytest.mark.parametrize(
    ("way", "other"),
    [
        ("stock", None),
        ("stock, average", None),
        ("stock, read", None),
        ("halfstep", "stock"),
        ("halfstep, read", "stock, read"),
        ("halfstep, ema", "stock, average"),
        ("halfstep, rollback", "stock"),
        ("accelerate, read", "stock, read"),
    ],
)
def test_ratio_is_taken_to_the_stock_loop_that_does_the_same(way: str, other: str | None) -> None:
    assert training.stock_of(way) == other
