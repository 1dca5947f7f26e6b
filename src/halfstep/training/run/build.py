"""From a recipe to an engine that is ready to train."""

from __future__ import annotations

import copy
import ctypes
import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from halfstep.precision import PrecisionSetting
from halfstep.records import BadTypeError, RecipeError
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
    """Seed torch, then make models, optimizers, schedules and engine, always the same ones.

    Args:
        recipe: What to build.
        precision: As for `Engine`.
        max_norm: As for `Engine`; ``None`` leaves it to the recipe's engine settings.
        seed: Seeds torch before the model is made.
        device: Where the models go.
        diagnose: As for `Engine`.
    """
    torch.manual_seed(seed)
    model = made_model(recipe, device)
    optimizer = recipe.optimizer(model)
    settings: dict[str, Any] = {"precision": precision}
    if recipe.schedule is not None:
        settings["schedule"] = recipe.schedule(optimizer)
    if recipe.ema is not None:
        settings["ema"] = recipe.ema
    if max_norm is not None:
        settings["max_norm"] = max_norm
    if diagnose != "never":
        settings["diagnose"] = diagnose
    if recipe.engine is None or isinstance(recipe.engine, Mapping):
        own = copy.deepcopy(dict(recipe.engine or {}))  # a scale and what conditions have learnt
        return Engine(model, optimizer, **{**own, **settings})
    engine = recipe.engine(model, optimizer, **settings)
    if not isinstance(engine, Engine):
        raise RecipeError(
            f"Recipe.engine must return a halfstep.Engine, got {type(engine).__name__}."
        )
    return engine


def made_model(recipe: Recipe, device: torch.device) -> nn.Module | dict[str, nn.Module]:
    """The recipe's model on a device, or its models by name.

    Args:
        recipe: Whose.
        device: Where to.
    """
    model = recipe.model()
    if isinstance(model, nn.Module) and not isinstance(model, Mapping):
        return model.to(device)
    if isinstance(model, Mapping) and model:
        for name, each in model.items():
            if not isinstance(each, nn.Module):
                raise BadTypeError(
                    f"Recipe.model must return modules, got {type(each).__name__} for {name!r}."
                )
        return {name: each.to(device) for name, each in model.items()}
    raise BadTypeError(
        "Recipe.model must return a torch.nn.Module, or several by name, got"
        f" {type(model).__name__}."
    )


def described_settings(recipe: Recipe) -> dict[str, Any]:
    """The engine settings of a recipe as plain data, for the record of a run."""
    found: dict[str, Any] = {} if recipe.ema is None else {"ema": _described(recipe.ema)}
    if recipe.engine is None:
        return found
    if not isinstance(recipe.engine, Mapping):
        name = getattr(recipe.engine, "__qualname__", type(recipe.engine).__name__)
        return {**found, "factory": name}
    return found | {name: _described(value) for name, value in recipe.engine.items()}


def _described(value: object) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(name): _described(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_described(each) for each in value]
    name = getattr(value, "__qualname__", None)
    return name if isinstance(name, str) else repr(value).partition(" at 0x")[0]


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
