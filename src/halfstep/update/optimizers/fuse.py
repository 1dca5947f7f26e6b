"""``fuse="auto"``: switch a stock optimizer to its fused kernel while that changes nothing else.

On a CPU torch's default Adam runs a Python loop over the parameters: 3 to 10 times slower.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

from halfstep.update.optimizers.kernels import KERNELS

logger = logging.getLogger("halfstep")


def fuse_if_free(optimizer: Optimizer) -> bool:
    """Switch every group to ``fused=True`` if the user left the choice open.

    Only for the exact stock classes, with `fused` and `foreach` unset, floating parameters on a
    device that has the kernels, and no state yet. Logs one line.

    Returns:
        Whether the optimizer was switched.
    """
    if type(optimizer) not in KERNELS or not _has_no_history(optimizer):
        return False
    if not all(_is_open(group) for group in optimizer.param_groups):
        return False
    _switch(optimizer)
    logger.info("%s: using the fused kernel (fuse=False leaves it alone)", type(optimizer).__name__)
    return True


def fuse_again(optimizer: Optimizer) -> bool:
    """Repeat the switch after a loaded checkpoint has undone it.

    `state_dict` carries the flag, so an unfused checkpoint unfuses the optimizer; torch then
    raises "Expected grad_scale and found_inf to be None". Groups whose flag says False or which
    chose foreach are left alone.

    Returns:
        Whether the optimizer was switched.
    """
    if not all(_is_open(group) for group in optimizer.param_groups):
        return False
    _switch(optimizer)
    logger.info(
        "%s: a loaded state had unfused it; using the fused kernel again", type(optimizer).__name__
    )
    return True


def unfuse(optimizer: Optimizer, because: str) -> None:
    """Take the switch back, for good; the state stays as it is."""
    optimizer.defaults["fused"] = None
    for group in optimizer.param_groups:
        group["fused"] = None
    optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]
    logger.info("%s: not using the fused kernel, %s", type(optimizer).__name__, because)


def is_fused(optimizer: Optimizer) -> bool:
    """Whether every group runs in a fused kernel at this moment."""
    return all(bool(group.get("fused")) for group in optimizer.param_groups)


def _switch(optimizer: Optimizer) -> None:
    optimizer.defaults["fused"] = True
    for group in optimizer.param_groups:
        group["fused"] = True
        for p in group["params"]:
            step = optimizer.state.get(p, {}).get("step")
            if isinstance(step, Tensor) and step.device != p.device:
                optimizer.state[p]["step"] = step.to(p.device, torch.float32)
    optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
    optimizer._need_device_dtype_check_for_fused = True  # type: ignore[attr-defined]


def _has_no_history(optimizer: Optimizer) -> bool:
    # Adagrad makes its state when constructed, with a step of 0
    steps = (state.get("step") for state in optimizer.state.values())
    return all(isinstance(step, Tensor) and float(step) == 0 for step in steps)


def _is_open(group: dict[str, object]) -> bool:
    params = group["params"]
    assert isinstance(params, list)
    devices = _get_fused_kernels_supported_devices()
    return (
        group.get("fused") is None
        and group.get("foreach") is None
        and not group.get("differentiable")
        and not isinstance(group.get("lr"), Tensor)
        and all(p.is_floating_point() and p.device.type in devices for p in params)
    )
