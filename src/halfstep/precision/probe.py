"""A short run of one product and one convolution in a 16-bit format."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from halfstep.numerics import FORMATS

_BUDGET_S = 0.25  # per op, format and precision; two formats take two seconds
_SIZE = 256


@dataclass(frozen=True)
class Probe:
    """What a probe of one format saw.

    Attributes:
        product_speed: Speed of a matrix product over that of FP32, above 1 where it is faster.
        convolution_speed: The same for a convolution.
        fault: What is wrong with the results; empty if nothing is.
    """

    product_speed: float
    convolution_speed: float
    fault: str


def probe_format(name: str, device: torch.device) -> Probe:
    """Run and time both ops; FP32 on the CPU is the reference for their results."""
    row = FORMATS[name]
    speeds, faults = [], []
    for label, op, inputs in _ops():
        rounded = [x.to(row.dtype).float() for x in inputs]
        expected = op(*rounded)
        half = [x.to(device, row.dtype) for x in rounded]
        full = [x.to(device) for x in rounded]
        try:
            result = op(*half).float().cpu()
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            return Probe(0.0, 0.0, f"a {label} in {row.name} raises: {reason}")
        if not bool(torch.isfinite(result).all()):
            faults.append(f"a {label} in {row.name} of finite numbers is not finite here")
        elif not bool(torch.isclose(result, expected, rtol=0.05, atol=0.05).all()):
            faults.append(f"a {label} in {row.name} is wrong here")
        speeds.append(_seconds(op, full, device) / _seconds(op, half, device))
    product, convolution = (float(f"{speed:.3g}") for speed in speeds)
    return Probe(product, convolution, "; ".join(faults))


def _ops() -> list[tuple[str, Callable[..., Tensor], list[Tensor]]]:
    made = torch.Generator().manual_seed(0)  # leaves the user's generator alone
    a, b = (torch.randn(_SIZE, _SIZE, generator=made) / 16 for _ in range(2))
    image = torch.randn(4, 32, 32, 32, generator=made)
    kernel = torch.randn(32, 32, 3, 3, generator=made) / 16
    return [("product", torch.mm, [a, b]), ("convolution", torch.conv2d, [image, kernel])]


def _seconds(op: Callable[..., Tensor], inputs: list[Tensor], device: torch.device) -> float:
    """The fastest of the calls that fit into the budget."""
    best, end = float("inf"), time.perf_counter() + _BUDGET_S
    while True:
        start = time.perf_counter()
        op(*inputs)
        if device.type != "cpu":
            torch.accelerator.synchronize()
        now = time.perf_counter()
        best = min(best, now - start)
        if now > end:
            return best
