"""What an engine refuses before it trains, one sentence each."""

from __future__ import annotations

import logging

import torch
from torch import nn
from torch.optim import Optimizer

from halfstep.records import BadTypeError, BadValueError

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
