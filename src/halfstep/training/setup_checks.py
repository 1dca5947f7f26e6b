"""What an engine refuses before it trains, one sentence each."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from halfstep.records import BadTypeError, BadValueError, CallOrderError

logger = logging.getLogger("halfstep")


def check_model(model: object) -> torch.device:
    """The device of the model's trainable parameters, if it can be trained at all."""
    if not isinstance(model, nn.Module):
        raise BadTypeError(f"model must be a torch.nn.Module, got {type(model).__name__}.")
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if not trainable:
        raise BadValueError("the model has no parameter that requires a gradient.")
    for name, p in trainable:
        if p.dtype is torch.float16:
            raise BadValueError(
                f"parameter {name!r} is FP16: updates smaller than 1/2048 of a weight are lost"
                " and its gradients cannot be unscaled. Keep the model in FP32 (model.float())"
                " and let autocast choose the format of each op."
            )
    return trainable[0][1].device


def check_optimizer(optimizer: object, model: nn.Module) -> None:
    """Refuse an optimizer over parameters that the model does not have."""
    if not isinstance(optimizer, Optimizer):
        raise BadTypeError(
            f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}."
        )
    if left_out := _trainable_outside(optimizer, model):
        logger.warning(
            "%d trainable parameters are in no group of the optimizer (first: %s); their gradients"
            " are computed and kept for nothing. requires_grad_(False) freezes them",
            len(left_out),
            left_out[0],
        )
    known = set(map(id, model.parameters()))
    foreign = [
        tuple(p.shape)
        for group in optimizer.param_groups
        for p in group["params"]
        if id(p) not in known
    ]
    if foreign:
        shapes = ", ".join(map(str, foreign[:3])) + (", ..." if len(foreign) > 3 else "")
        raise BadValueError(
            f"the optimizer holds {len(foreign)} parameters that are not the model's (shapes"
            f" {shapes}); it would never see their gradients. Build it from model.parameters(),"
            " after the model was moved or replaced."
        )


def _trainable_outside(optimizer: Optimizer, model: nn.Module) -> list[str]:
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return [n for n, p in model.named_parameters() if p.requires_grad and id(p) not in held]


def check_stray_gradients(parameters: Sequence[Tensor]) -> None:
    """Refuse to start a window on gradients that the engine did not make.

    Zeros (``zero_grad(set_to_none=False)``) are harmless and dropped.
    """
    stray = [p for p in parameters if p.grad is not None]
    if any(bool(torch.count_nonzero(_values(p))) for p in stray):
        raise CallOrderError(
            "there are gradients that engine.backward() of this window did not make (a"
            " loss.backward() of your own, or another engine's); they must not be mixed with scaled"
            " ones. Use engine.backward(loss), or optimizer.zero_grad() before the window."
        )
    for p in stray:
        p.grad = None


def _values(p: Tensor) -> Tensor:
    assert p.grad is not None
    return p.grad.coalesce().values() if p.grad.is_sparse else p.grad
