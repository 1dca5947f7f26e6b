"""A few ops in and out of autocast; imports torch only, so that a bare process can run it."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

X = torch.linspace(-3, 3, 64).reshape(8, 8)
OPS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda h: torch.softmax(h, -1),
    "layer_norm": lambda h: F.layer_norm(h, (8,)),
    "gelu": F.gelu,
    "mul": lambda h: h * h,
    "sum": lambda h: h.sum(),
    "exp": torch.exp,
    "norm": lambda h: h.norm(),
    "mm": lambda h: h @ h,
    "cat": lambda h: torch.cat([h, h.float()]),
    "mse_loss": lambda h: F.mse_loss(h, h.detach() * 0.5),
    "max_pool3d": lambda h: F.max_pool3d(h[None, None, None], (1, 2, 2)),
    "einsum": lambda h: torch.einsum("ij,jk->ik", h, h),
}


def results(dtype: torch.dtype = torch.float16) -> list[Tensor]:
    """Every op on values of a dtype, and its gradient."""
    found = []
    for op in OPS.values():
        h = X.to(dtype).requires_grad_()
        with torch.enable_grad():
            y = op(h)
        found += [y.detach(), *torch.autograd.grad(y.float().sum(), h)]
    return found


def all_results() -> list[list[Tensor]]:
    """FP32 and FP16 inputs, without and with stock autocast in FP16."""
    found = [results(torch.float32), results()]
    with torch.autocast("cpu", torch.float16):
        found += [results(torch.float32), results()]
    return found


if __name__ == "__main__":
    torch.save(all_results(), sys.argv[1])
