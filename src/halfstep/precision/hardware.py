"""Which format a device is good at."""

from __future__ import annotations

import torch


def choose_format(device: torch.device) -> tuple[str, str]:
    """The format that ``precision="auto"`` means on `device`, and why.

    Returns:
        ``("bf16" | "fp16" | "fp32", reason)``.
    """
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        name = torch.cuda.get_device_name(device)
        if (major, minor) >= (8, 0):
            return "bf16", f"{name} has BF16 matrix units, and BF16 needs no loss scale"
        if (major, minor) >= (7, 0):
            return "fp16", f"{name} has FP16 matrix units and none for BF16"
        return "fp32", f"{name} has no matrix units for a 16-bit format"
    if device.type == "cpu":
        if _cpu_has_bf16():
            return "bf16", "this CPU has BF16 instructions, and BF16 needs no loss scale"
        return "fp32", "this CPU has no 16-bit arithmetic; AMP would only save memory"
    return "fp32", f"nothing is known about 16-bit arithmetic on {device.type!r} devices"


def _cpu_has_bf16() -> bool:
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, probe, bool)() for probe in probes)
