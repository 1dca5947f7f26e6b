"""What all sections share: the device, the sizes, and how long to measure."""

from __future__ import annotations

import functools
import gc
import importlib.util
from dataclasses import dataclass

import torch
from torch import nn

from benchmarks.gpu_bench import gpt2, resnet50
from benchmarks.gpu_bench.device_time import Rounds, Stopwatch
from benchmarks.gpu_bench.trainers import DTYPES, Accelerate, Trainer
from benchmarks.gpu_bench.workloads import Workload, adamw, gpt2_workload, resnet_workload


class Vectors(nn.Module):
    """Parameters of one size, for updates that are all launches."""

    def __init__(self, count: int, size: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(size)) for _ in range(count)])


@dataclass(frozen=True)
class Setup:
    """The device and what is measured on it.

    Attributes:
        device: A CUDA device.
        training: GPT-2 and ResNet-50 as they are trained.
        updates: Models whose update is timed alone.
        micro_batches: Of a way in a round of training.
        rounds: Least and most of a case.
        rounds_s: Seconds for the rounds of an update, and of a training.
    """

    device: torch.device
    training: tuple[Workload, Workload]
    updates: tuple[Workload, ...]
    micro_batches: int
    rounds: tuple[int, int]
    rounds_s: tuple[float, float]
    is_tiny: bool

    @functools.cached_property
    def stopwatch(self) -> Stopwatch:
        return Stopwatch(self.device)

    def rounds_of_updates(self) -> Rounds:
        return Rounds(*self.rounds, self.rounds_s[0])

    def rounds_of_training(self) -> Rounds:
        return Rounds(*self.rounds, self.rounds_s[1])


def vectors(count: int, size: int) -> Workload:
    return Workload(f"{count} x {size}", lambda: Vectors(count, size), adamw, _no_batch, 0, ("", 0))


def _no_batch(count: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    raise NotImplementedError("only the update of these parameters is measured")


def setup_for(device: torch.device, *, is_tiny: bool, is_quick: bool) -> Setup:
    """Full sizes, or tiny ones that only show that everything runs."""
    if is_tiny:
        models = tiny_workloads()
        return Setup(device, models, (vectors(4, 8), *models), 1, (2, 2), (0.0, 0.0), True)
    shapes = gpt2_workload(gpt2.PUBLISHED, 0), resnet_workload(resnet50.PUBLISHED, 0)
    return Setup(
        device,
        (gpt2_workload(gpt2.PADDED, 8), resnet_workload(resnet50.PUBLISHED, 64)),
        (vectors(300, 64), *shapes),
        micro_batches=12,
        rounds=(4, 8) if is_quick else (8, 100),
        rounds_s=(3.0, 8.0) if is_quick else (8.0, 24.0),
        is_tiny=False,
    )


def tiny_workloads() -> tuple[Workload, Workload]:
    return gpt2_workload(gpt2.TINY, 2), resnet_workload(resnet50.TINY, 2)


def with_accelerate(*trainers: type[Trainer]) -> tuple[type[Trainer], ...]:
    """Those, and Accelerate where it works."""
    return trainers if accelerate_fails() else (*trainers, Accelerate)


@functools.cache
def accelerate_fails() -> str:
    """Why Accelerate is not measured; empty if it is.

    It is tried once: a version that does not go with this torch must not take the figures of the
    others with it.
    """
    if importlib.util.find_spec("accelerate") is None:
        return "Accelerate is not installed (pip install accelerate)"
    language, _ = tiny_workloads()
    device = torch.device("cuda", torch.cuda.current_device())
    try:
        for format_name in DTYPES:
            Accelerate(language, format_name, device).step([language.batch(1, device)])
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        return f"Accelerate fails here: {type(error).__name__}: {lines[0]}"
    return ""


def release() -> None:
    """Give freed memory back, so that one measurement does not shape the next."""
    gc.collect()
    torch.cuda.empty_cache()
