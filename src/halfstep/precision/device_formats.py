"""What a device makes of each format: native, emulated, broken or refused."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch

from halfstep.precision.nearest import did_you_mean
from halfstep.precision.probe import Probe, probe_format
from halfstep.records import BadValueError

State = Literal["native", "emulated", "broken", "refused"]

# Turing without tensor cores: FP16 convolutions of cuDNN return NaN there, a well-known fault.
_NAN_IN_FP16_CONVOLUTIONS = re.compile(r"GTX 16\d\d|MX[45]50|\bT(400|500|550|600|1000|1200)\b")


@dataclass(frozen=True)
class FormatSupport:
    """One format on one device.

    Attributes:
        state: ``"native"`` (the device has arithmetic for it), ``"emulated"`` (right, but slower
            than FP32 or no faster), ``"broken"`` (known or seen to give wrong results) or
            ``"refused"`` (torch raises).
        why: One clause.
        probe: What a probe measured, ``None`` without one.
    """

    state: State
    why: str
    probe: Probe | None = None


@dataclass(frozen=True)
class Hardware:
    """What a device makes of the formats.

    Attributes:
        device: ``"cpu"``, ``"cuda:0"``.
        name: Of the processor.
        formats: ``"fp32"``, ``"tf32"``, ``"bf16"``, ``"fp16"`` to what the device makes of it.
    """

    device: str
    name: str
    formats: Mapping[str, FormatSupport]

    @property
    def best(self) -> tuple[str, str]:
        """The format that ``precision="auto"`` means here, and why."""
        bf16, fp16 = self.formats["bf16"], self.formats["fp16"]
        if bf16.state == "native":
            return "bf16", f"{bf16.why}, and BF16 needs no loss scale"
        if fp16.state == "native":
            return "fp16", f"{fp16.why}; BF16: {bf16.why}"
        if fp16.state == "broken":
            return "fp32", fp16.why
        return "fp32", f"{fp16.why}; AMP would only save memory"


def hardware(device: str | torch.device | None = None, *, probe: bool = False) -> Hardware:
    """Which formats are native, emulated, broken or refused on a device.

    Args:
        device: ``None`` for the accelerator where there is one, else the CPU.
        probe: Also run a product and a convolution in each 16-bit format, for about two seconds
            in all; a wrong or non-finite result makes the format ``"broken"``.

    Returns:
        The report, from the device's properties and, on request, the probe.

    Syncs: with `probe`.

    Example:
        >>> from halfstep.precision import hardware
        >>> hardware("cpu").formats["fp32"].state
        'native'
    """
    place = _checked(device)
    if place.type == "cuda":
        capability = torch.cuda.get_device_capability(place)
        name = torch.cuda.get_device_name(place)
        formats = cuda_formats(name, capability, torch.cuda.is_bf16_supported())
    elif place.type == "cpu":
        name, formats = platform.processor() or platform.machine(), _cpu_formats()
    else:
        name, formats = place.type, _unknown_formats(place.type)
    if probe:
        formats = {row: _probed(row, support, place) for row, support in formats.items()}
    return Hardware(str(place), name, formats)


def choose_format(device: torch.device) -> tuple[str, str]:
    """The format that ``precision="auto"`` means on `device`, and why."""
    return hardware(device).best


def cuda_formats(
    name: str, capability: tuple[int, int], torch_takes_bf16: bool
) -> dict[str, FormatSupport]:
    """The formats of an NVIDIA GPU by its name and compute capability."""
    ampere, volta = capability >= (8, 0), capability >= (7, 0)
    if _NAN_IN_FP16_CONVOLUTIONS.search(name):
        fp16 = FormatSupport("broken", f"{name} is known for NaN in FP16 convolutions")
    elif volta:
        fp16 = FormatSupport("native", f"{name} has FP16 matrix units")
    else:
        fp16 = FormatSupport("emulated", f"{name} has no matrix units for a 16-bit format")
    if ampere:
        bf16 = FormatSupport("native", f"{name} has BF16 matrix units")
    elif torch_takes_bf16:
        bf16 = FormatSupport("emulated", f"{name} has no matrix units for it")
    else:
        bf16 = FormatSupport("refused", f"torch refuses it on {name}")
    tf32 = (
        FormatSupport("native", f"{name} has TF32 matrix units")
        if ampere
        else FormatSupport("refused", f"{name} has no TF32 matrix units")
    )
    return {"fp32": FormatSupport("native", "FP32"), "tf32": tf32, "bf16": bf16, "fp16": fp16}


def refuse_format(format_name: str, device_type: str) -> None:
    """Raise where torch has no autocast for a device, or none in this format.

    Raises:
        BadValueError: With the nearest device name, or the format to take instead.
    """
    known = ("cpu", "cuda", "xpu", "mps")
    try:
        available = torch.amp.is_autocast_available(device_type)
    except RuntimeError:
        available = False
    if not available:
        raise BadValueError(
            f"torch has no autocast for device {device_type!r}{did_you_mean(device_type, known)}"
        )
    if device_type != "cuda" or format_name == "fp32":
        return
    if not torch.cuda.is_available():
        raise BadValueError(
            "this torch finds no CUDA device. Policy(..., base='cuda').autocast('cpu') runs CUDA's"
            " op list on the CPU."
        )
    if format_name == "bf16" and not torch.cuda.is_bf16_supported():
        raise BadValueError(f"{torch.cuda.get_device_name()} refuses 'bf16'; did you mean 'fp16'?")


def _checked(device: str | torch.device | None) -> torch.device:
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise BadValueError(f"cannot use device {str(device)!r}: {reason}.") from error
    return place


def _cpu_formats() -> dict[str, FormatSupport]:
    has_bf16 = _cpu_has("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    has_fp16 = _cpu_has("_is_amx_fp16_supported")
    return {
        "fp32": FormatSupport("native", "FP32"),
        "tf32": FormatSupport("refused", "TF32 exists on GPUs only"),
        "bf16": FormatSupport("native", "this CPU has BF16 instructions")
        if has_bf16
        else FormatSupport("emulated", "this CPU has no BF16 arithmetic"),
        "fp16": FormatSupport("native", "this CPU has FP16 matrix instructions")
        if has_fp16
        else FormatSupport("emulated", "this CPU has no FP16 arithmetic"),
    }


def _cpu_has(*probes: str) -> bool:
    return any(getattr(torch.cpu, probe, bool)() for probe in probes)


def _unknown_formats(device_type: str) -> dict[str, FormatSupport]:
    unknown = FormatSupport(
        "emulated", f"nothing is known about 16-bit arithmetic on {device_type!r} devices"
    )
    native = FormatSupport("native", "FP32")
    return {"fp32": native, "tf32": unknown, "bf16": unknown, "fp16": unknown}


def _probed(row: str, support: FormatSupport, device: torch.device) -> FormatSupport:
    if row not in ("bf16", "fp16") or support.state == "refused":
        return support
    found = probe_format(row, device)
    if found.fault:
        return FormatSupport("broken", found.fault, found)
    return replace(support, probe=found)
