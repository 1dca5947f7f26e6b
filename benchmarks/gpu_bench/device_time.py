"""Time, kernels and waits of a call on a CUDA device.

Ways to do the same thing are measured in rounds: each once per round, in an order that is drawn
anew, so that a slow phase of the machine hits all of them and ratios are taken within a round.
"""

from __future__ import annotations

import functools
import random
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from torch.profiler import ProfilerActivity, profile, supported_activities

from benchmarks.gpu_bench.cases import Clock, LeftOut

T = TypeVar("T")
Call = Callable[[], object]
WARM_UP = 3  # state is made in the first step, plans in the second, pinned memory in both
_ATTEMPTS = 3  # to time a call behind a sleep; each sleep is four times as long
ACTIVITIES = (ProfilerActivity.CPU, ProfilerActivity.CUDA)


class Rounds:
    """How often to measure: `most` rounds, fewer when the seconds are over, never under `least`.

    Args:
        least: Rounds without which there are no quartiles.
        most: Rounds after which more would change nothing.
        seconds: For the rounds together.
        clock: Seconds; another one in tests.
    """

    def __init__(
        self, least: int, most: int, seconds: float, clock: Clock = time.monotonic
    ) -> None:
        self.least, self.most, self.seconds = least, most, seconds
        self._clock = clock

    def __iter__(self) -> Iterator[int]:
        end = self._clock() + self.seconds
        for turn in range(self.most):
            if turn >= self.least and self._clock() >= end:
                return
            yield turn


def interleaved(
    ways: Mapping[str, Callable[[], T]], rounds: Rounds, warm_up: int = WARM_UP
) -> dict[str, list[T]]:
    """What each way returned, round by round.

    Args:
        ways: By name; each measures itself.
        rounds: How often.
        warm_up: Rounds before those, whose results are dropped.
    """
    found: dict[str, list[T]] = {name: [] for name in ways}
    order, shuffle = list(ways), random.Random(0).shuffle
    for _ in range(warm_up):
        for name in order:
            ways[name]()
    for _ in rounds:
        shuffle(order)
        for name in order:
            found[name].append(ways[name]())
    return found


class Times(NamedTuple):
    """Milliseconds of one call.

    Attributes:
        host: Until the call returned, on an idle device.
        wall: Until the device was done too.
        device: Of the device's work without gaps; ``None`` if the call itself waits for it.
    """

    host: float
    wall: float
    device: float | None


class Stopwatch:
    """Times calls; the device's own time is taken while its queue is full.

    A kernel that sleeps is queued first. The host queues the whole call behind it, so that the
    device never waits for the host between the two events. Whether the sleep was long enough is
    looked at each time: it is not where a call waits for the device, or was slow for once, and then
    it is made longer.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cycles_per_ms = self._calibrate()

    def _calibrate(self) -> float:
        cycles, found = 10**6, 0.0
        for _ in range(2):  # the first one loads the kernel
            first, last = _events()
            first.record()
            _sleep(cycles)
            last.record()
            torch.cuda.synchronize(self._device)
            found = cycles / max(first.elapsed_time(last), 1e-3)
        return found

    def __call__(self, prepare: Call, call: Call) -> Times:
        """Time a call twice, once on an idle device and once behind a full queue.

        Args:
            prepare: Run before each of the two, outside of the clock.
            call: What is timed.
        """
        prepare()
        torch.cuda.synchronize(self._device)
        begin = time.perf_counter()
        call()
        returned = time.perf_counter()
        torch.cuda.synchronize(self._device)
        host, wall = ((end - begin) * 1e3 for end in (returned, time.perf_counter()))
        for attempt in range(_ATTEMPTS):
            sleep_ms = (1 + 2 * host) * 4**attempt
            if (device := self._behind_a_sleep(prepare, call, sleep_ms)) is not None:
                return Times(host, wall, device)
        return Times(host, wall, None)

    def _behind_a_sleep(self, prepare: Call, call: Call, sleep_ms: float) -> float | None:
        prepare()
        first, last = _events()
        torch.cuda.synchronize(self._device)
        _sleep(int(sleep_ms * self._cycles_per_ms))
        first.record()
        call()
        last.record()
        was_full = not first.query()  # type: ignore[no-untyped-call]
        torch.cuda.synchronize(self._device)
        return first.elapsed_time(last) if was_full else None


def _sleep(cycles: int) -> None:
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


def _events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    return first, last


class Kernels(NamedTuple):
    """What the device ran."""

    kernels: int
    copies: int
    fills: int
    names: list[str]  # of the copies


def kernels_of(call: Call, device: torch.device) -> Kernels:
    """Count the device's work of one call by torch's profiler.

    Raises:
        LeftOut: The profiler sees no kernels here.
    """
    if reason := profiler_is_missing(device):
        raise LeftOut(reason)
    return sort_work(_profiled(call, device))


@functools.cache
def profiler_is_missing(device: torch.device) -> str:
    """Why the profiler sees no kernels here; empty if it does.

    The first profile of a process starts CUPTI and may miss what runs meanwhile, so that the second
    one counts.
    """
    if ProfilerActivity.CUDA not in supported_activities():  # type: ignore[no-untyped-call]
        return "this torch was built without CUPTI, so that its profiler sees no kernels"
    try:
        for _ in range(2):
            seen = _profiled(lambda: torch.zeros(2, device=device).add_(1), device)
    except RuntimeError as error:
        return f"the profiler fails: {error}"
    return "" if seen else "the profiler saw no kernel where there was one; CUPTI does not start"


def _profiled(call: Call, device: torch.device) -> list[str]:
    """Names of what ran on the device; annotations of the host are on its track too."""
    torch.cuda.synchronize(device)
    with profile(activities=ACTIVITIES) as seen:
        call()
        torch.cuda.synchronize(device)
    return [
        event.name
        for event in seen.events() or []
        if event.device_type.name == "CUDA" and not event.is_user_annotation
    ]


def sort_work(names: list[str]) -> Kernels:
    """Kernels, copies and fills by the names that CUPTI gives them."""
    names = [name for name in names if not name.startswith(("Optimizer.", "ProfilerStep"))]
    copies = [name for name in names if name.startswith("Memcpy")]
    fills = [name for name in names if name.startswith("Memset")]
    kernels = len(names) - len(copies) - len(fills)
    return Kernels(kernels, len(copies), len(fills), sorted(copies))


def waits_of(call: Call) -> list[str]:
    """Where a call made the host wait, as ``file:line`` of the Python that did.

    torch's debug mode sees `.item()`, copies from and to ordinary memory and waits for a stream; it
    sees no wait for an event.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return [
        f"{Path(warning.filename).name}:{warning.lineno}"
        for warning in caught
        if "called a synchronizing" in str(warning.message)
    ]
