"""`Recipe`: everything that a training run is made of, as factories."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from halfstep.records import BadTypeError
from halfstep.records.keywords import explains_fields
from halfstep.training import other_names
from halfstep.training.followers.schedule import Schedule
from halfstep.training.window.loss import LossSum


@explains_fields("Recipe", other_names.RECIPE)
@dataclass(frozen=True)
class Recipe:
    """What `fit`, and every tool, trains.

    Attributes:
        name: For logs and records.
        model: Makes a fresh model; called after seeding, so that runs start equal.
        loss_fn: ``loss_fn(model, batch)``, inside autocast: a mean loss or a `LossSum`.
        batches: Makes the batches: the same ones in the same order at every call. A finite
            sequence is repeated.
        optimizer: ``optimizer(model)``.
        validate: ``validate(model)`` under no_grad and autocast, in eval mode: one number or a
            mapping of names to numbers.
        schedule: ``schedule(optimizer)``: a token schedule or a torch LRScheduler.
        ema: Decay of an average of the weights, see `Engine`; its validation is named
            ``averaged_...``.
        unit: What the divisors count, for display: "tokens", "samples".
    """

    name: str
    model: Callable[[], nn.Module]
    loss_fn: Callable[[nn.Module, Any], Tensor | LossSum]
    batches: Callable[[], Iterable[Any]]
    optimizer: Callable[[nn.Module], Optimizer]
    validate: Callable[[nn.Module], float | Mapping[str, float]] | None = None
    schedule: Callable[[Optimizer], Schedule] | None = None
    ema: float | None = None
    unit: str = "tokens"

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "model" and isinstance(value, nn.Module):
                raise BadTypeError(
                    "Recipe.model got a module; pass a function that makes one, so that every run"
                    " starts afresh."
                )
            optional = field.name in ("validate", "schedule")
            if (
                field.name in ("name", "unit", "ema")
                or (optional and value is None)
                or callable(value)
            ):
                continue
            hint = " (a factory, so that every run starts afresh)" if not optional else ""
            raise BadTypeError(
                f"Recipe.{field.name} must be a function{hint}, got {type(value).__name__}."
            )
