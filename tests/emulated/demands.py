"""What CUDA's kernels refuse where the CPU's would take it, or would read wrong memory.

Source: torch 2.13 `aten/src/ATen/native/cuda/FusedAdamKernel.cu`, `fused_adam_impl.cu`,
`FusedSgdKernel.cu`, `AmpKernels.cu`, `ForeachUtils.h` (`check_fast_path_restrictions`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def check_demands(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse what the CUDA kernel of this operation refuses."""
    if name.startswith("_fused_"):
        _check_fused(name, args, kwargs)
    elif name == "_amp_update_scale_":
        for value, dtype in zip(args[:3], (torch.float32, torch.int32, torch.float32), strict=True):
            _check_scalar(name, value, dtype)
    elif name == "_amp_foreach_non_finite_check_and_unscale_":
        _check_scalar("found_inf", args[1], torch.float32)
        _check_scalar("inv_scale", args[2], torch.float32)
        if not all(grad.is_floating_point() for grad in args[0]):
            raise RuntimeError("scaled_grads must be floating-point")


def _check_fused(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    lists = [each for each in args if isinstance(each, (list, tuple))]
    steps: Sequence[Tensor] = ()
    if "sgd" not in name:
        *lists, steps = lists
    params = lists[0]
    for each in lists[1:]:
        if not each:
            continue  # amsgrad off, no momentum
        if len(each) != len(params):
            raise RuntimeError(f"{name}: {len(params)} parameters and {len(each)} states")
        for p, t in zip(params, each, strict=True):
            if _kind(p) != _kind(t):
                raise RuntimeError(
                    f"{name}: params, grads and states must have same dtype, device, and layout"
                )
    for step in steps:
        _check_scalar("state_steps", step, torch.float32)
    for flag in ("grad_scale", "found_inf"):
        if kwargs.get(flag) is not None:
            _check_scalar(flag, kwargs[flag], torch.float32)
    if isinstance(kwargs.get("lr"), Tensor) and kwargs["lr"].is_cuda:
        _check_scalar("lr", kwargs["lr"], torch.float32)


def _kind(value: Tensor) -> object:
    # the kernels do not compare the stride of a dimension of one element (ForeachUtils.h)
    strides = tuple(s for s, n in zip(value.stride(), value.shape, strict=True) if n != 1)
    return value.device, value.dtype, value.shape, strides


def _check_scalar(what: str, value: Tensor, dtype: torch.dtype) -> None:
    if not value.is_cuda or value.dtype is not dtype or value.numel() != 1:
        raise RuntimeError(
            f"{what} must be one {dtype} on cuda:0, got {tuple(value.shape)} {value.dtype} on"
            f" {value.device}"
        )
