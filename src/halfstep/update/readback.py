"""StepNumbers from the device: at once in one wait, or later without one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Number = float | int | Tensor


def read_now(values: Sequence[Number]) -> list[float]:
    """All values as floats, in one wait if any is on a device.

    Syncs: once if a value is on a device, else no.
    """
    devices = {v.device for v in values if isinstance(v, Tensor) and not v.is_cpu}
    if not devices:
        return [float(value) for value in values]
    read: list[float] = pack(values, devices.pop()).tolist()
    return read


def pack(values: Sequence[Number], device: torch.device) -> Tensor:
    """The values side by side in one float64 tensor on `device`; nothing waits."""
    return torch.stack([on_device(value, device) for value in values])


def on_device(value: Number, device: torch.device) -> Tensor:
    """A 0-d float64 tensor on `device`; nothing waits.

    A number, or a tensor on the CPU, is written by a fill kernel: a copy from ordinary host memory
    would block.
    """
    if isinstance(value, Tensor) and not (value.is_cpu and device.type != "cpu"):
        return value.detach().to(device, torch.float64)
    return torch.full((), float(value), dtype=torch.float64, device=device)


def as_flag(found_inf: Number, device: torch.device) -> Tensor:
    """1.0 or 0.0 as a 0-d float32 tensor on `device`; nothing waits for a number."""
    if isinstance(found_inf, Tensor):
        return found_inf.to(device, torch.float32)
    return torch.full((), float(found_inf), dtype=torch.float32, device=device)


def any_of(flags: Sequence[Number]) -> Tensor:
    """1.0 if any flag is not 0; a 0-d float32 tensor on the device of the first that has one."""
    device = next(flag.device for flag in flags if isinstance(flag, Tensor))
    return torch.stack([as_flag(flag, device) for flag in flags]).amax()


class Readback:
    """A copy to pinned host memory that was started and not waited for.

    Args:
        values: 1-D float64 tensor. On a CPU there is nothing to wait for.
    """

    def __init__(self, values: Tensor) -> None:
        self._event: torch.Event | None = None
        if values.device.type == "cpu":
            self._host = values
            return
        # the default device may be another one, where nothing can be pinned
        self._host = torch.empty(len(values), dtype=values.dtype, device="cpu", pin_memory=True)
        self._event = torch.Event(values.device)
        self._host.copy_(values, non_blocking=True)
        self._event.record(torch.accelerator.current_stream(values.device))

    def wait(self) -> list[float]:
        """The values, once they have arrived."""
        if self._event is not None:
            self._event.synchronize()
        read: list[float] = self._host.tolist()
        return read
