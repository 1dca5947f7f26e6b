"""What an engine refuses before it trains, one sentence each."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from halfstep.records import BadTypeError, BadValueError

logger = logging.getLogger("halfstep")


def check_models(models: Mapping[str, nn.Module]) -> torch.device:
    """The device of the models' trainable parameters, if they can be trained at all."""
    for name, model in models.items():
        if not isinstance(model, nn.Module):
            advice = ", or a mapping of them by name" if len(models) == 1 else f" for {name!r}"
            raise BadTypeError(
                f"model must be a torch.nn.Module{advice}, got {type(model).__name__}."
            )
    if len({id(model) for model in models.values()}) < len(models):
        raise BadValueError("a model is in the mapping twice; each must be another module.")
    found = {name: _device_of_trainable(model) for name, model in models.items()}
    devices = {name: device for name, device in found.items() if device is not None}
    if not devices:
        which = "the model has no" if len(models) == 1 else "none of the models has a"
        raise BadValueError(
            f"{which} parameter that requires a gradient; requires_grad_(True) unfreezes them."
        )
    kinds = {device.type for device in devices.values()}
    if len(kinds) > 1:
        where = ", ".join(f"{name!r} on {device}" for name, device in devices.items())
        raise BadValueError(f"the models of an engine must be on one kind of device, got {where}.")
    return next(iter(devices.values()))


def _device_of_trainable(model: nn.Module) -> torch.device | None:
    """``None`` for a frozen model, which may stand beside one that is trained."""
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if not trainable:
        return None
    refuse_fp16_parameters(trainable)
    warn_of_bf16_parameters(trainable)
    return trainable[0][1].device


def refuse_fp16_parameters(named: Iterable[tuple[str, Tensor]]) -> None:
    """Refuse trainable parameters in FP16; ``model.half()`` may come after the engine was made."""
    for name, p in named:
        if p.dtype is torch.float16:
            raise BadValueError(
                f"parameter {name!r} is FP16: updates smaller than 1/2048 of a weight are lost"
                " and its gradients cannot be unscaled. Keep the model in FP32 (model.float())"
                " and let autocast choose the format of each op."
            )


def warn_of_bf16_parameters(named: Sequence[tuple[str, Tensor]]) -> bool:
    """Whether trainable parameters are BF16, in whose format small updates vanish."""
    narrow = [name for name, p in named if p.dtype is torch.bfloat16]
    if narrow:
        logger.warning(
            "parameter %r is BF16 (%d of %d are): an update below 1/256 of a weight is rounded"
            " away, 1.0 minus 100 times 1e-4 stays 1.0. Keep the model in FP32 (model.float()) and"
            " let autocast choose the format of each op",
            narrow[0],
            len(narrow),
            len(named),
        )
    return bool(narrow)


def check_optimizers(optimizers: Mapping[str, Optimizer], models: Mapping[str, nn.Module]) -> None:
    """Refuse optimizers over parameters that no model has, or that two of them would step."""
    for optimizer in optimizers.values():
        if not isinstance(optimizer, Optimizer):
            raise BadTypeError(
                "optimizer must be a torch.optim.Optimizer, or a mapping of them by name, got"
                f" {type(optimizer).__name__}."
            )
    _refuse_strangers_and_twins(optimizers, models)
    if left_out := trainable_outside(optimizers.values(), models):
        logger.warning(
            "%d trainable parameters are in no group of the optimizer (first: %s); their gradients"
            " are computed for nothing and dropped with each window. requires_grad_(False) freezes"
            " them",
            len(left_out),
            left_out[0][0],
        )


def _refuse_strangers_and_twins(
    optimizers: Mapping[str, Optimizer], models: Mapping[str, nn.Module]
) -> None:
    known = {id(p) for model in models.values() for p in model.parameters()}
    owner: dict[int, str] = {}
    for name, optimizer in optimizers.items():
        title = f"optimizer {name!r}" if len(optimizers) > 1 else "optimizer"
        _refuse_foreign(title, optimizer, known)
        for p in _held(optimizer):
            if owner.setdefault(id(p), name) != name:
                raise BadValueError(
                    f"a parameter of shape {tuple(p.shape)} is in the optimizers"
                    f" {owner[id(p)]!r} and {name!r}; each update would move it twice."
                )


def _held(optimizer: Optimizer) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _refuse_foreign(title: str, optimizer: Optimizer, known: set[int]) -> None:
    foreign = [tuple(p.shape) for p in _held(optimizer) if id(p) not in known]
    if foreign:
        shapes = ", ".join(map(str, foreign[:3])) + (", ..." if len(foreign) > 3 else "")
        raise BadValueError(
            f"the {title} holds {len(foreign)} parameters that are not the model's (shapes"
            f" {shapes}); it would never see their gradients. Build it from model.parameters(),"
            " after the model was moved or replaced."
        )


def trainable_outside(
    optimizers: Iterable[Optimizer], models: Mapping[str, nn.Module]
) -> list[tuple[str, Tensor]]:
    """Name and parameter of what requires a gradient and belongs to no optimizer."""
    held = {id(p) for optimizer in optimizers for p in _held(optimizer)}
    return [
        (f"{model_name}.{name}" if len(models) > 1 else name, p)
        for model_name, model in models.items()
        for name, p in model.named_parameters()
        if p.requires_grad and id(p) not in held
    ]
