"""StepNumbers from the device: at once in one wait, or later without one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import accumulate

import torch
from torch import Tensor

from halfstep.records import BadValueError

Number = float | int | Tensor


def check_float64(device: torch.device) -> None:
    """Refuse a device on which no float64 numbers can be computed, such as Apple's MPS.

    Norms, losses and divisors are added up in float64, on the device: without it the first step
    would fail after its forward and backward.

    Raises:
        BadValueError: The device has no float64.
    """
    if device.type == "cpu":
        return
    try:
        torch.ones((), dtype=torch.float64, device=device).mul_(2.0)
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise BadValueError(
            f"{device} computes nothing in float64 ({str(error).splitlines()[0].rstrip('.')}), in"
            " which norms and losses are added up; use model.to('cpu'), a CUDA device, or"
            " torch.autocast and torch.amp.GradScaler without halfstep."
        ) from error


def read_now(values: Sequence[Number]) -> list[float]:
    """All values as floats, in one wait if any is on a device.

    Syncs: once if a value is on a device, else no.
    """
    devices = {v.device for v in values if isinstance(v, Tensor) and not v.is_cpu}
    if not devices:
        return [float(value) for value in values]
    packed = _Packed(values, devices.pop())
    return packed.unpack(packed.tensor.tolist())


class _Packed:
    """Values of which the host knows some; those of a device side by side in one tensor.

    Tensors of one dtype are put side by side by one kernel, and each of them once however often it
    is among the values: two dtypes are three launches, where one conversion each would be one for
    every value.

    Args:
        values: Numbers and 0-d tensors.
        device: Where the tensors are gathered; a tensor on the CPU is a number.

    Attributes:
        tensor: 1-D, on the device; float64 if a value is.
    """

    def __init__(self, values: Sequence[Number], device: torch.device) -> None:
        groups: dict[torch.dtype, list[Tensor]] = {}
        seen: dict[int, tuple[torch.dtype, int]] = {}
        self._known: list[float | tuple[torch.dtype, int]] = []
        for value in values:
            if not isinstance(value, Tensor) or value.is_cpu:
                self._known.append(float(value))
                continue
            if id(value) not in seen:
                there = value.detach().to(device)
                if not (there.is_floating_point() or there.dtype is torch.bool):
                    there = there.double()  # a whole number may need more digits than float32 has
                group = groups.setdefault(there.dtype, [])
                seen[id(value)] = there.dtype, len(group)
                group.append(there)
            self._known.append(seen[id(value)])
        parts = [g[0].reshape(1) if len(g) == 1 else torch.stack(g) for g in groups.values()]
        sizes = [0, *accumulate(map(len, groups.values()))]
        self._starts = dict(zip(groups, sizes, strict=False))
        self.tensor = parts[0] if len(parts) == 1 else torch.cat(parts)

    def unpack(self, read: Sequence[float]) -> list[float]:
        """The values in their order.

        Args:
            read: What `tensor` holds.
        """
        return [
            known if isinstance(known, float) else float(read[self._starts[known[0]] + known[1]])
            for known in self._known
        ]


def on_device(value: Number, device: torch.device) -> Tensor:
    """A 0-d float64 tensor on `device`; nothing waits.

    A number, or a tensor on the CPU, is written by a fill kernel: a copy from ordinary host memory
    would block.
    """
    if isinstance(value, Tensor) and not (value.is_cpu and device.type != "cpu"):
        return value.detach().to(device, torch.float64)
    return torch.full((), float(value), dtype=torch.float64, device=device)


def is_one(value: Number) -> bool:
    """Whether the host knows that a number is 1, so that there is nothing to compute."""
    return not isinstance(value, Tensor) and value == 1


def filled(values: Sequence[float], device: torch.device) -> Tensor:
    """The values as a 1-D float64 tensor on `device`; nothing waits, as for `on_device`."""
    return torch.stack([on_device(float(value), device) for value in values])


def as_flag(found_inf: Number, device: torch.device) -> Tensor:
    """1.0 or 0.0 as a 0-d float32 tensor on `device`; nothing waits for a number."""
    if isinstance(found_inf, Tensor):
        return found_inf.to(device, torch.float32)
    return torch.full((), float(found_inf), dtype=torch.float32, device=device)


def any_of(flags: Sequence[Number]) -> Number:
    """Not 0 if any flag is not; a 0-d tensor where one is and no number decides, else a float."""
    tensors = [flag for flag in flags if isinstance(flag, Tensor)]
    if not tensors or any(flag for flag in flags if not isinstance(flag, Tensor)):
        return float(any(flag for flag in flags if not isinstance(flag, Tensor)))
    home = tensors[0].device
    return reduce(torch.maximum, [flag.to(home) for flag in tensors])


def side_by_side(values: Sequence[Number], device: torch.device) -> Number:
    """The values as one number where all are the same, else as one float64 tensor on `device`.

    Args:
        values: One for each optimizer of a step, 0-d where it is a tensor.
        device: Of the result.

    Returns:
        A float that the host knows, or a tensor: of shape [] for one value and where all are one
        tensor, else of shape [len(values)].
    """
    first = values[0]
    if isinstance(first, Tensor):
        if all(value is first for value in values):
            return on_device(first, device)
    elif all(not isinstance(value, Tensor) and value == first for value in values):
        return float(first)
    return torch.stack([on_device(value, device) for value in values])


class Readback:
    """A copy to pinned host memory that was started and not waited for.

    Args:
        values: 1-D tensor. On a CPU there is nothing to wait for.
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
            self._event = None
        read: list[float] = self._host.tolist()
        return read


class LateNumbers:
    """Numbers of which a device knows some: those are on their way to the host.

    Args:
        values: Numbers and 0-d tensors; what they hold now is what `wait` returns.
    """

    def __init__(self, values: Sequence[Number]) -> None:
        home = next((v.device for v in values if isinstance(v, Tensor) and not v.is_cpu), None)
        self._values: list[float] = []
        self._packed: _Packed | None = None
        if home is None:
            self._values = [float(value) for value in values]
            return
        self._packed = _Packed(values, home)
        self._readback = Readback(self._packed.tensor)

    def wait(self) -> list[float]:
        """The values, once they have arrived."""
        if self._packed is None:
            return self._values
        return self._packed.unpack(self._readback.wait())
