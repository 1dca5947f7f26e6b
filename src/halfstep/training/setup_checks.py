"""What an engine refuses before it trains, one sentence each."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

import torch
from torch import nn
from torch.optim import Optimizer

from halfstep.records import BadTypeError, BadValueError

logger = logging.getLogger("halfstep")


def check_models(models: Mapping[str, nn.Module]) -> torch.device:
    """The device of the models' trainable parameters, if they can be trained at all."""
    devices = {name: _check_model(model) for name, model in models.items()}
    kinds = {device.type for device in devices.values()}
    if len(kinds) > 1:
        where = ", ".join(f"{name!r} on {device}" for name, device in devices.items())
        raise BadValueError(f"the models of an engine must be on one kind of device, got {where}.")
    return next(iter(devices.values()))


def _check_model(model: object) -> torch.device:
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
    narrow = [name for name, p in trainable if p.dtype is torch.bfloat16]
    if narrow:
        logger.warning(
            "parameter %r is BF16 (%d of %d are): an update below 1/256 of a weight is rounded"
            " away, 1.0 minus 100 times 1e-4 stays 1.0. Keep the model in FP32 (model.float()) and"
            " let autocast choose the format of each op",
            narrow[0],
            len(narrow),
            len(trainable),
        )
    return trainable[0][1].device


def check_optimizers(optimizers: Mapping[str, Optimizer], models: Mapping[str, nn.Module]) -> None:
    """Refuse optimizers over parameters that no model has, or that two of them would step."""
    for optimizer in optimizers.values():
        if not isinstance(optimizer, Optimizer):
            raise BadTypeError(
                f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}."
            )
    if left_out := _trainable_outside(optimizers.values(), models.values()):
        logger.warning(
            "%d trainable parameters are in no group of the optimizer (first: %s); their gradients"
            " are computed and kept for nothing. requires_grad_(False) freezes them",
            len(left_out),
            left_out[0],
        )
    known = {id(p) for model in models.values() for p in model.parameters()}
    owner: dict[int, str] = {}
    for name, optimizer in optimizers.items():
        _refuse_foreign(optimizer, known)
        for p in _held(optimizer):
            if owner.setdefault(id(p), name) != name:
                raise BadValueError(
                    f"a parameter of shape {tuple(p.shape)} is in the optimizers"
                    f" {owner[id(p)]!r} and {name!r}; each update would move it twice."
                )


def _held(optimizer: Optimizer) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _refuse_foreign(optimizer: Optimizer, known: set[int]) -> None:
    foreign = [tuple(p.shape) for p in _held(optimizer) if id(p) not in known]
    if foreign:
        shapes = ", ".join(map(str, foreign[:3])) + (", ..." if len(foreign) > 3 else "")
        raise BadValueError(
            f"the optimizer holds {len(foreign)} parameters that are not the model's (shapes"
            f" {shapes}); it would never see their gradients. Build it from model.parameters(),"
            " after the model was moved or replaced."
        )


def _trainable_outside(optimizers: Iterable[Optimizer], models: Iterable[nn.Module]) -> list[str]:
    held = {id(p) for optimizer in optimizers for p in _held(optimizer)}
    return [
        name
        for model in models
        for name, p in model.named_parameters()
        if p.requires_grad and id(p) not in held
    ]
