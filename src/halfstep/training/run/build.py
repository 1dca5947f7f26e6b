"""From a recipe to an engine that is ready to train."""

from __future__ import annotations

import ctypes
import hashlib

import torch
from torch import nn

from halfstep.precision import PrecisionSetting
from halfstep.records import BadTypeError
from halfstep.training.engine.engine import Engine
from halfstep.training.run.recipe import Recipe


def build_engine(
    recipe: Recipe,
    *,
    precision: PrecisionSetting,
    max_norm: float | None,
    seed: int,
    device: torch.device,
    diagnose: str = "never",
) -> Engine:
    """Seed torch, then make model, optimizer, schedule and engine, always the same ones."""
    torch.manual_seed(seed)
    model = recipe.model()
    if not isinstance(model, nn.Module):
        raise BadTypeError(
            f"Recipe.model must return a torch.nn.Module, got {type(model).__name__}."
        )
    model.to(device)
    optimizer = recipe.optimizer(model)
    schedule = recipe.schedule(optimizer) if recipe.schedule is not None else None
    return Engine(
        model,
        optimizer,
        precision=precision,
        max_norm=max_norm,
        schedule=schedule,
        ema=recipe.ema,
        diagnose=diagnose,
    )


def state_checksum(engine: Engine) -> str:
    """16 hexadecimal digits over the bits of all parameters, buffers and averaged weights.

    Syncs: yes, they are copied to the host.
    """
    digest = hashlib.blake2b(digest_size=8)
    averages = [ema for ema in engine.emas.values() if ema is not None]
    for module in [*engine.models.values(), *averages]:
        for tensor in [*module.parameters(), *module.buffers()]:
            host = tensor.detach().cpu().contiguous()
            digest.update(ctypes.string_at(host.data_ptr(), host.numel() * host.element_size()))
    return digest.hexdigest()
