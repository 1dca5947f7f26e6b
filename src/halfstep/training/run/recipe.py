"""`Recipe`: everything that a training run is made of, as factories."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from halfstep.records import BadTypeError, BadValueError
from halfstep.records.keywords import explains_fields, unknown_keyword
from halfstep.training import other_names
from halfstep.training.engine.engine import Engine
from halfstep.training.followers.schedule import Schedule
from halfstep.training.window.loss import LossSum


@explains_fields("Recipe", other_names.RECIPE)
@dataclass(frozen=True)
class Recipe:
    """What `fit`, and every tool, trains.

    With several models or optimizers, `model` and `optimizer` return mappings by name, and wherever
    a function below gets the model or the optimizer, it gets the mapping.

    Attributes:
        name: For logs and records.
        model: Makes a fresh model; called after seeding, so that runs start equal.
        loss_fn: ``loss_fn(model, batch)``, inside autocast: a mean loss or a `LossSum`. All
            optimizers step together.
        batches: Returns the batches: a DataLoader, a list, a generator. A finite sequence is
            repeated; see ``docs/recipes.md`` for what a resumed run sees of them.
        optimizer: ``optimizer(model)``.
        validate: ``validate(model)`` under no_grad and autocast, in eval mode: one number or a
            mapping of names to numbers.
        schedule: ``schedule(optimizer)``: a token schedule or a torch LRScheduler.
        ema: Decay of an average of the weights, see `Engine`; its validation is named
            ``averaged_...``.
        unit: What the divisors count, for display: "tokens", "samples".
        engine: Further settings of `Engine` by name (``{"loss_scale": 1024.0, "veto": ...}``),
            copied for each run; or a factory ``engine(model, optimizer, **settings)`` that returns
            an `Engine`, whose `settings` are those that the run decides: `precision`, and where
            they are given `max_norm`, `diagnose`, `schedule` and `ema`.

    Raises:
        BadTypeError: Something that is no factory.
        BadValueError: A setting in `engine` that `Engine` has not, or that the run decides.

    Example:
        >>> import torch, halfstep as hs
        >>> recipe = hs.Recipe(
        ...     name="line",
        ...     model=lambda: torch.nn.Linear(2, 1),
        ...     loss_fn=lambda model, x: model(x).square().mean(),
        ...     batches=lambda: [torch.ones(4, 2)],
        ...     optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        ...     engine={"loss_scale": 1024.0},
        ... )
        >>> hs.fit(recipe, precision="fp32", steps=3).steps[-1].loss_scale
        1024.0
    """

    name: str
    model: Callable[[], nn.Module | Mapping[str, nn.Module]]
    loss_fn: Callable[[Any, Any], Tensor | LossSum]
    batches: Callable[[], Iterable[Any]]
    optimizer: Callable[[Any], Optimizer | Mapping[str, Optimizer]]
    validate: Callable[[Any], float | Mapping[str, float]] | None = None
    schedule: Callable[[Any], Schedule | Mapping[str, Schedule | None]] | None = None
    ema: float | None = None
    unit: str = "tokens"
    engine: Mapping[str, Any] | Callable[..., Engine] | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "model" and isinstance(value, nn.Module):
                raise BadTypeError(
                    "Recipe.model got a module; pass a function that makes one, so that every run"
                    " starts afresh."
                )
            if field.name == "engine" and isinstance(value, Mapping):
                _check_settings(value, self)
                continue
            optional = field.name in ("validate", "schedule", "engine")
            if (
                field.name in ("name", "unit", "ema")
                or (optional and value is None)
                or callable(value)
            ):
                continue
            hint = " or a mapping of settings" if field.name == "engine" else ""
            hint = hint or " (a factory, so that every run starts afresh)" * (not optional)
            raise BadTypeError(
                f"Recipe.{field.name} must be a function{hint}, got {type(value).__name__}."
            )


def _check_settings(settings: Mapping[str, Any], recipe: Recipe) -> None:
    known = [*inspect.signature(Engine).parameters][2:]
    elsewhere = {
        "precision": "the run decides it: fit(recipe, precision=...) or --precision",
        "diagnose": "the run decides it: fit(recipe, diagnose=...) or --diagnose",
    }
    if recipe.schedule is not None or "schedule" in settings:
        elsewhere["schedule"] = "it needs the optimizer: Recipe(schedule=lambda optimizer: ...)"
    if recipe.ema is not None:
        elsewhere["ema"] = "Recipe(ema=...) has it already"
    for name in settings:
        if name not in known:
            raise BadValueError(
                unknown_keyword("Recipe.engine", str(name), known, other_names.ENGINE)
            )
        if name in elsewhere:
            raise BadValueError(f"Recipe.engine must leave out {name!r}; {elsewhere[name]}.")
