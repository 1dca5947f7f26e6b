"""What `benchmarks/gpu.py` compares: real models, and ways that do the same work."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Iterator, Sequence
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from accelerate_state import fresh_accelerate
from benchmarks import gpu
from benchmarks.gpu_bench import device_time, gpt2, resnet50, trainers, training, updates
from benchmarks.gpu_bench.cases import LeftOut
from benchmarks.gpu_bench.setup import Setup, accelerate_fails, setup_for, tiny_workloads
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
from benchmarks.gpu_bench.workloads import Batch, Workload
from emulated import Counts, emulated_device, inner

EPS = torch.finfo(torch.float32).eps
DEVICE = torch.device("cuda", 0)


@pytest.fixture
def counts() -> Iterator[Counts]:
    with fresh_accelerate(), emulated_device() as found:
        yield found


@pytest.fixture
def tiny(counts: Counts) -> Setup:
    return setup_for(DEVICE, is_tiny=True, is_quick=False)


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


# --------------------------------------------------------------------------------- the measures


def test_row_of_an_update_compares_within_rounds_and_drops_those_without_a_time() -> None:
    # by hand: milliseconds in rounds of which the machine was ten times slower in the second
    Times = device_time.Times
    times = {
        "bare bf16": [Times(1, 2, 1.0), Times(10, 20, 10.0), Times(1, 2, 1.0)],
        "stock bf16": [Times(2, 4, 2.0), Times(20, 40, 20.0), Times(2, 4, None)],
        "halfstep bf16": [Times(1, 3, 1.5), Times(10, 30, 15.0), Times(1, 3, 1.5)],
    }
    row = updates.row_of("halfstep bf16", times)
    assert row["against"] == "stock bf16"
    assert row["device_ratio_to_bare"] == [1.5, 1.5, 1.5]
    assert row["device_ratio"] == [0.75, 0.75, 0.75]
    assert row["wall_ratio"] == [0.75, 0.75, 0.75]
    assert row["device_us"][1] == 1500.0
    assert row["host_us"][1] == 1000.0
    times["stock bf16"] = [Times(1, 1, None)] * 3
    assert updates.row_of("halfstep bf16", times)["device_ratio"] is None


def test_device_time_is_unknown_where_the_call_waits(counts: Counts) -> None:
    stopwatch = device_time.Stopwatch(DEVICE)
    value = torch.ones((), device=DEVICE)
    queued, waited = stopwatch(lambda: None, lambda: value + 1), stopwatch(lambda: None, value.item)
    assert queued.device == 1.0  # what every event of the emulated device says
    assert waited.device is None
    assert 0 < queued.host <= queued.wall


def test_both_timings_begin_prepared_on_an_idle_device(counts: Counts) -> None:
    seen: list[str] = []
    stopwatch = device_time.Stopwatch(DEVICE)
    counts.clear()

    def call() -> None:
        assert counts.waits[-1].kind == "device"
        seen.append("call")

    stopwatch(lambda: seen.append("prepare"), call)
    assert seen == ["prepare", "call"] * 2


def test_waits_of_a_call_name_their_line(counts: Counts) -> None:
    value = torch.ones((), device=DEVICE)
    assert len(device_time.waits_of(value.item)) == 1
    assert device_time.waits_of(lambda: value + 1) == []
    assert torch.cuda.get_sync_debug_mode() == 0


def test_profiler_without_cupti_leaves_the_kernels_out(
    counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_time, "supported_activities", set)
    device_time.profiler_is_missing.cache_clear()
    with pytest.raises(LeftOut, match="built without CUPTI"):
        device_time.kernels_of(lambda: None, DEVICE)
    device_time.profiler_is_missing.cache_clear()


def test_profiler_that_sees_nothing_is_not_counted_as_no_kernels(
    counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    activities = {device_time.ProfilerActivity.CUDA}
    monkeypatch.setattr(device_time, "supported_activities", lambda: activities)
    monkeypatch.setattr(device_time, "_profiled", lambda call, device: [])
    device_time.profiler_is_missing.cache_clear()
    with pytest.raises(LeftOut, match="the profiler saw no kernel where there was one"):
        device_time.kernels_of(lambda: None, DEVICE)
    device_time.profiler_is_missing.cache_clear()


def test_profile_of_the_host_alone_has_no_work_of_a_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # the real profiler: its events have the fields that are read, and all are the host's here
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    monkeypatch.setattr(device_time, "ACTIVITIES", (device_time.ProfilerActivity.CPU,))
    ran: list[Tensor] = []
    assert device_time._profiled(lambda: ran.append(torch.ones(2) + 1), DEVICE) == []
    assert len(ran) == 1


# -------------------------------------------------------------------------- what is left out


def test_without_accelerate_its_place_says_so(tiny: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "accelerate" else find(name)
    )
    assert reason_without_accelerate(tiny) == (
        "Accelerate is not installed (pip install accelerate)"
    )


def test_accelerate_that_fails_takes_nothing_with_it(
    tiny: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Trainer, window: Sequence[Batch]) -> None:
        raise TypeError("unexpected keyword\nmore")

    monkeypatch.setattr(trainers.Accelerate, "step", fails)
    assert reason_without_accelerate(tiny) == (
        "Accelerate fails here: TypeError: unexpected keyword"
    )


def reason_without_accelerate(setup: Setup) -> str:
    accelerate_fails.cache_clear()
    try:
        case = next(c for c in gpu.cases_for(setup, ["training"]) if c.name == "accelerate")
        with pytest.raises(LeftOut) as left:
            case.run()
        _, images = tiny_workloads()
        assert "accelerate fp16" not in updates.trainers_for(images, DEVICE)
        return str(left.value)
    finally:
        accelerate_fails.cache_clear()


def test_compiled_cases_come_where_triton_is(tiny: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "compiler_is_missing", lambda: "")
    names = [case.name for case in gpu.cases_for(tiny, ["training", "followers"])]
    formats, models = ("bf16", "fp16"), ("GPT-2", "ResNet-50")
    everything = [
        f"{model} {name}, window of {size}{compiled}"
        for size in (1, 4)
        for compiled in ("", ", compiled")
        for name in formats
        for model in models
    ]
    assert sorted({*names}) == sorted(everything)
    # order of value: eager with windows of one, what follows a step, then the rest
    assert names[:4] == everything[:4]
    assert names[4] == "ResNet-50 fp16, window of 1"
    assert names[5:9] == everything[4:8]


class TooLarge(Stock):
    """A way that has room for one sample."""

    def step(self, window: Sequence[Batch]) -> None:
        if len(window[0][0]) > 1:
            raise torch.OutOfMemoryError("emulated")
        super().step(window)


class AlwaysTooLarge(Stock):
    def step(self, window: Sequence[Batch]) -> None:
        raise torch.OutOfMemoryError("emulated")


def trained(setup: Setup, workload: Workload) -> training.Training:
    return training.Training(workload, "bf16", 1)


def test_training_that_does_not_fit_goes_on_with_fewer_samples_and_says_so(tiny: Setup) -> None:
    found = training.measure_training(tiny, trained(tiny, tiny.training[0]), [TooLarge])
    assert found.notes == [
        "out of memory; 1 samples in a micro-batch instead",
        "1 samples in a micro-batch, 1 steps in a round, 2 rounds",
    ]
    assert found.rows["stock"]["loss"] > 0


def test_training_that_never_fits_is_out_of_memory(tiny: Setup) -> None:
    measure = partial(training.measure_training, tiny, trained(tiny, tiny.training[0]))
    with pytest.raises(torch.OutOfMemoryError, match="emulated"):
        measure([AlwaysTooLarge])


def test_engine_that_waits_is_a_failure(counts: Counts, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.gpu_bench import steps

    language, _ = tiny_workloads()
    trainer = Halfstep(language, "bf16", DEVICE, is_fused=False)
    row = ("halfstep, unfused", Halfstep, partial(trainer.step, [language.batch(2, DEVICE)]))
    monkeypatch.setattr(steps, "_steps", lambda device: iter([row]))
    found = steps.count_waits(DEVICE)
    assert found.failure == "halfstep, unfused made the host wait in a fused step"
    assert found.rows["halfstep, unfused"]["waits"] == 1.0


def test_compiler_that_fails_is_said_in_one_line(
    tiny: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(function: object) -> object:
        raise RuntimeError("Failed to find C compiler.\nSee the manual")

    monkeypatch.setattr(torch, "compile", fails)
    trainers.compiler_fails.cache_clear()
    compiled = training.Training(tiny.training[0], "bf16", 1, is_compiled=True)
    with pytest.raises(LeftOut) as left:
        training.measure_training(tiny, compiled, [Stock])
    assert str(left.value) == "torch.compile fails here: RuntimeError: Failed to find C compiler."
    trainers.compiler_fails.cache_clear()


def test_loss_that_is_no_number_stays_readable_json(
    tiny: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stock, "read", lambda self: math.nan)
    found = training.measure_training(tiny, trained(tiny, tiny.training[0]), [Stock])
    assert json.dumps(found.rows["stock"]["loss"], allow_nan=False) == '"nan"'
