"""How `benchmarks/gpu.py` measures, and what it says where something is missing."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from accelerate_state import fresh_accelerate
from benchmarks import gpu
from benchmarks.gpu_bench import device_time, steps, trainers, training, updates
from benchmarks.gpu_bench.cases import LeftOut
from benchmarks.gpu_bench.setup import Setup, accelerate_fails, setup_for, tiny_workloads
from benchmarks.gpu_bench.trainers import Halfstep, Stock, Trainer
from benchmarks.gpu_bench.workloads import Batch, Workload
from emulated import Counts, emulated_device

DEVICE = torch.device("cuda", 0)


@pytest.fixture
def counts() -> Iterator[Counts]:
    with fresh_accelerate(), emulated_device() as found:
        yield found


@pytest.fixture
def tiny(counts: Counts) -> Setup:
    return setup_for(DEVICE, is_tiny=True, is_quick=False)


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


@pytest.mark.parametrize(("stock_is_fused", "fails"), [(True, True), (False, False)])
def test_engine_that_waits_more_than_the_stock_loop_is_a_failure(
    counts: Counts, monkeypatch: pytest.MonkeyPatch, stock_is_fused: bool, fails: bool
) -> None:
    # an unfused optimizer waits once in either; with a fused one the stock loop does not
    language, _ = tiny_workloads()
    window = [language.batch(2, DEVICE)]
    stock = Stock(language, "fp16", DEVICE, is_fused=stock_is_fused)
    ours = Halfstep(language, "fp16", DEVICE, is_fused=False)
    rows = [
        steps.Counted("stock", partial(stock.step, window), None),
        steps.Counted("ours", partial(ours.step, window), "stock"),
    ]
    monkeypatch.setattr(steps, "_steps", lambda device: iter(rows))
    found = steps.count_waits(DEVICE)
    assert found.failure == ("ours made the host wait in a fused step" if fails else None)
    assert found.rows["ours"]["waits"] == 1.0


# ------------------------------------------- what no CPU build of torch can do, up to torch's call


@pytest.fixture
def profiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A profiler whose device says what the emulated one was told to run."""
    kernels = ["void at::native::multi_tensor_apply_kernel", "Memcpy DtoH (Device -> Pinned)"]

    def profiled(call: Callable[[], object], device: torch.device) -> list[str]:
        call()
        return kernels

    monkeypatch.setattr(
        device_time, "supported_activities", lambda: {device_time.ProfilerActivity.CUDA}
    )
    monkeypatch.setattr(device_time, "_profiled", profiled)
    device_time.profiler_is_missing.cache_clear()
    yield
    device_time.profiler_is_missing.cache_clear()


def test_kernels_of_every_way_are_counted_where_the_profiler_sees_them(
    tiny: Setup, profiler: None
) -> None:
    cases = gpu.cases_for(tiny, ["kernels"])
    assert [case.name for case in cases] == [
        f"one step of {model}, {name}"
        for name in ("bf16", "fp16")
        for model in ("GPT-2", "ResNet-50")
    ]
    found = cases[2].run()
    assert list(found.rows) == ["stock", "halfstep", "drop-in", "drop-in, its clip", "accelerate"]
    for row in found.rows.values():
        assert row == {
            "kernels_of_step": 1, "copies_of_step": 1, "fills_of_step": 0,
            "kernels_of_update": 1, "copies_of_update": 1,
        }  # fmt: skip
    assert "copies of halfstep: Memcpy DtoH (Device -> Pinned)" in found.notes


def test_kernels_of_a_step_stand_beside_its_time(tiny: Setup, profiler: None) -> None:
    found = training.measure_training(tiny, trained(tiny, tiny.training[0]), [Stock, Halfstep])
    kernels = {way: (row.get("kernels"), row.get("copies")) for way, row in found.rows.items()}
    assert kernels["stock"] == kernels["halfstep"] == (1, 1)
    assert kernels["halfstep, read"] == (None, None)


@pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")
def test_compiled_training_compiles_the_model_of_every_way(
    tiny: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[object] = []

    def compile_(model: nn.Module, **options: object) -> nn.Module:
        compiled.append(model)
        return model

    monkeypatch.setattr(torch, "compile", compile_)
    monkeypatch.setattr(training, "compiler_fails", lambda device: "")
    workload = tiny.training[1]
    found = training.measure_training(
        tiny,
        training.Training(workload, "bf16", 4, is_compiled=True),
        [Stock, Halfstep, trainers.Accelerate],
    )
    assert len(compiled) == 3
    losses = {way: row["loss"] for way, row in found.rows.items() if "loss" in row}
    assert losses["stock"] == losses["halfstep"] == losses["accelerate"]
