"""`emulated_device`: what of torch is another thing while the emulated device is there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._device import _device_constructors

from emulated import autocast
from emulated.clock import CLOCK, Counts, Event, Stream
from emulated.tensors import DEVICE, DEVICE_RANDOM, DeviceTensor, DispatchMode

_MODES = {"default": 0, "warn": 1, "error": 2, 0: 0, 1: 1, 2: 2}


@contextlib.contextmanager
def emulated_device(
    capability: tuple[int, int] = (9, 0), *, has_float64: bool = True
) -> Iterator[Counts]:
    """A CUDA device, emulated; yields its counts.

    Args:
        capability: What the device says it can do.
        has_float64: Whether it computes in float64.
    """
    autocast.register_kernels()
    CLOCK.restart()
    autocast.clear_cache()
    DEVICE_RANDOM.seed(0)
    only_lifts, threads = torch._C._only_lift_cpu_tensors(), torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch, DispatchMode():
        _replace(patch, capability)
        patch.setattr(DeviceTensor, "has_float64", has_float64)
        torch._C._set_only_lift_cpu_tensors(True)  # else torch.tensor(device=...) asks for CUDA
        torch.set_num_threads(1)  # for tensors as small as these, threads cost 100 times more
        try:
            yield CLOCK.counts
        finally:
            torch.set_default_device(None)
            torch._C._set_only_lift_cpu_tensors(only_lifts)
            torch.set_num_threads(threads)
            autocast.clear_cache()


def _replace(patch: pytest.MonkeyPatch, capability: tuple[int, int]) -> None:
    for name, value in _methods().items():
        patch.setattr(Tensor, name, value)
    for name, value in {**_facts(capability), **_streams(), **_random()}.items():
        patch.setattr(torch.cuda, name, value, raising=False)
    _device_constructors()  # torch keeps this set of functions: not with the replaced ones in it
    for name in ("tensor", "as_tensor", "set_default_device"):
        patch.setattr(torch, name, _with_indices(getattr(torch, name)))
    patch.setattr(torch, "Event", Event)
    patch.setattr(torch.accelerator, "current_stream", lambda device=None: Stream())
    patch.setattr(torch.accelerator, "synchronize", _synchronize)
    patch.setattr(torch._C, "_group_tensors_by_device_and_dtype", _grouped())
    patch.setattr(torch, "clear_autocast_cache", _cleared(torch.clear_autocast_cache))


def _methods() -> dict[str, Callable[..., Any]]:
    to, is_pinned = Tensor.to, Tensor.is_pinned

    def moved(self: Tensor, *args: Any, copy: bool = False, **kwargs: Any) -> Tensor:
        options = {name: _with_index(value) for name, value in kwargs.items()}
        found = to(self, *map(_with_index, args), **options)
        return found.clone() if copy and found is self else found

    def pinned(self: Tensor, *device: Any) -> bool:
        return False if self.is_cuda else is_pinned(self)

    return {
        "to": moved,
        "cuda": lambda self, device=None, non_blocking=False: moved(
            self, DEVICE, non_blocking=non_blocking
        ),
        "is_pinned": pinned,
    }


def _with_index(device: Any) -> Any:
    if isinstance(device, (str, torch.device)) and str(device) == "cuda":
        return DEVICE  # C++ would ask CUDA for the index
    return device


def _with_indices(function: Callable[..., Any]) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        options = {name: _with_index(value) for name, value in kwargs.items()}
        return function(*map(_with_index, args), **options)

    return called


def _facts(capability: tuple[int, int]) -> dict[str, Any]:
    properties = SimpleNamespace(
        name="Emulated device", major=capability[0], minor=capability[1], total_memory=2**34,
        multi_processor_count=1,
    )  # fmt: skip
    return {
        "_lazy_init": lambda: None,
        "is_initialized": lambda: True,
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "_exchange_device": lambda device: 0,
        "_maybe_exchange_device": lambda device: 0,
        "get_device_capability": lambda device=None: capability,
        "get_device_name": lambda device=None: properties.name,
        "get_device_properties": lambda device=None: properties,
        "is_bf16_supported": lambda including_emulation=True: capability >= (8, 0),
        "empty_cache": lambda: None,
        "memory_allocated": lambda device=None: 0,
        "max_memory_allocated": lambda device=None: 0,
        "reset_peak_memory_stats": lambda device=None: None,
    }


def _streams() -> dict[str, Any]:
    def set_debug_mode(mode: int | str) -> None:
        CLOCK.debug_mode = _MODES[mode]

    return {
        "Event": Event,
        "Stream": Stream,
        "current_stream": lambda device=None: Stream(),
        "default_stream": lambda device=None: Stream(),
        "stream": lambda stream: contextlib.nullcontext(),
        "synchronize": _synchronize,
        "_sleep": lambda cycles: CLOCK.queue(lambda: None),
        "set_sync_debug_mode": set_debug_mode,
        "get_sync_debug_mode": lambda: CLOCK.debug_mode,
    }


def _synchronize(device: object = None) -> None:
    CLOCK.wait("device", seen_by_debug_mode=False)


def _random() -> dict[str, Any]:
    def set_state(state: Tensor, device: object = None) -> None:
        DEVICE_RANDOM.state = state.clone()

    return {
        "manual_seed": DEVICE_RANDOM.seed,
        "manual_seed_all": DEVICE_RANDOM.seed,
        "get_rng_state": lambda device=None: DEVICE_RANDOM.state.clone(),
        "set_rng_state": set_state,
        "get_rng_state_all": lambda: [DEVICE_RANDOM.state.clone()],
        "set_rng_state_all": lambda states: set_state(states[0]),
    }


def _grouped() -> Callable[..., Any]:
    """C++ groups by "meta"; what reads the groups must find the device."""
    group = torch._C._group_tensors_by_device_and_dtype

    def grouped(lists: Any, with_indices: bool = False) -> Any:
        found = group(lists, with_indices)
        return {(DEVICE if d and d.type == "meta" else d, t): v for (d, t), v in found.items()}

    return grouped


def _cleared(clear: Callable[[], None]) -> Callable[[], None]:
    def cleared() -> None:
        clear()
        autocast.clear_cache()

    return cleared
