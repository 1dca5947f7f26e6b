"""Validation that leaves no trace in the training, the best one, early stopping."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from halfstep.records import BadTypeError, BadValueError, RunRecord, Validation
from halfstep.training.engine.engine import Engine
from halfstep.training.followers.buffers import BufferRollback
from halfstep.training.rng import rng_state, set_rng_state
from halfstep.training.run.recipe import Recipe

Direction = Literal["min", "max"]


@dataclass(frozen=True)
class Best:
    """Which validation is the best one.

    Attributes:
        metric: A name that `Recipe.validate` returns; "validation" where it returns one number.
        direction: "min" or "max". NaN is never the best.

    Example:
        >>> from halfstep.records import Validation
        >>> found = [Validation(10, {"loss": 0.5}), Validation(20, {"loss": 0.7})]
        >>> Best("loss").of(found)
        Validation(step=10, metrics={'loss': 0.5})
    """

    metric: str = "validation"
    direction: Direction = "min"

    def __post_init__(self) -> None:
        if not isinstance(self.metric, str):
            raise BadTypeError(
                f"metric must be the name of a metric, got {type(self.metric).__name__}."
            )
        if self.direction not in ("min", "max"):
            raise BadValueError(f'direction must be "min" or "max", got {self.direction!r}.')

    @classmethod
    def parse(cls, text: str) -> Best:
        """From ``"NAME"``, the smallest is best, or ``"NAME:max"``.

        Args:
            text: As on a command line.
        """
        name, colon, direction = text.rpartition(":")
        return cls(name, direction) if colon else cls(text)  # type: ignore[arg-type]  # is checked

    def of(self, validations: Sequence[Validation]) -> Validation | None:
        """The best of them, the first of equal ones; ``None`` if none has a number.

        Args:
            validations: In the order in which they were made.
        """
        sign = 1 if self.direction == "min" else -1
        numbers = [one for one in validations if not math.isnan(self._value(one.metrics))]
        return min(numbers, key=lambda one: sign * self._value(one.metrics), default=None)

    def check(self, metrics: Mapping[str, float], setting: str) -> None:
        """Refuse a name that the recipe's validation does not return.

        Args:
            metrics: What it returned.
            setting: For the message.
        """
        if self.metric not in metrics:
            raise BadValueError(
                f"{setting} goes by the metric {self.metric!r}, the recipe's validation returns"
                f" {', '.join(map(repr, metrics)) or 'none'}; name one of these."
            )

    def _value(self, metrics: Mapping[str, float]) -> float:
        return metrics.get(self.metric, math.nan)


@dataclass(frozen=True)
class Patience:
    """Stops a run whose last `count` validations brought nothing better; see `patience`."""

    count: int
    best: Best

    def __call__(self, run: RunRecord) -> bool:
        """Whether to stop."""
        best = self.best.of(run.validations)
        later = [one for one in run.validations if best is None or one.step > best.step]
        return len(later) >= self.count


def patience(count: int, metric: str = "validation", direction: Direction = "min") -> Patience:
    """Early stopping for `fit`: after `count` validations in a row without a new best value.

    Args:
        count: At least 1.
        metric: A name that `Recipe.validate` returns; "validation" where it returns one number.
        direction: "min" or "max".

    Raises:
        BadValueError: A count below 1 or another direction.

    Example:
        >>> import halfstep as hs
        >>> rule = hs.patience(3, "val_accuracy", "max")
        >>> rule.count
        3
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise BadValueError(f"patience must be a whole number of at least 1, got {count!r}.")
    return Patience(count, Best(metric, direction))


@dataclass(frozen=True)
class ValidationPlan:
    """What `fit` was asked for: how often to validate, which weights to keep, when to stop."""

    every: int | None
    keep_best: Best | None
    stop: Callable[[RunRecord], object] | None

    def check(self, recipe: Recipe, has_folder: bool) -> None:
        """Refuse what cannot be done, before anything is trained.

        Args:
            recipe: Must have a `validate` if validations are asked for.
            has_folder: Whether there are checkpoints.
        """
        every, name = self.every, recipe.name
        if every is not None and (isinstance(every, bool) or not isinstance(every, int)):
            raise BadValueError(f"validate_every must be a whole number, got {every!r}.")
        if every is not None and every < 1:
            raise BadValueError(f"validate_every must be at least 1, got {every}.")
        if every is not None and recipe.validate is None:
            raise BadValueError(f"validate_every needs Recipe.validate; recipe {name!r} has none.")
        if self.stop is not None and not callable(self.stop):
            raise BadTypeError(
                "stop must be a function of the run record, such as hs.patience(3), got"
                f" {type(self.stop).__name__}."
            )
        if self.keep_best is not None and not isinstance(self.keep_best, Best):
            raise BadTypeError(
                'keep_best must be an hs.Best, such as hs.Best("val_loss", "min"), got'
                f" {type(self.keep_best).__name__}."
            )
        if self.keep_best is not None and not has_folder:
            raise BadValueError(
                "keep_best needs checkpoints=CheckpointFolder(...), where best.pt is written."
            )
        for setting, value in (("keep_best", self.keep_best), ("patience", self._patience)):
            if value is not None and every is None:
                raise BadValueError(f"{setting} needs validate_every, the steps between two looks.")

    def check_metrics(self, metrics: Mapping[str, float]) -> None:
        """Refuse names of metrics that the validation does not return.

        Args:
            metrics: Of a validation.
        """
        if self.keep_best is not None:
            self.keep_best.check(metrics, "keep_best")
        if self._patience is not None:
            self._patience.best.check(metrics, "patience")

    def is_due(self, step: int) -> bool:
        """Whether to validate after this step."""
        return self.every is not None and step % self.every == 0

    def asks_after(self, step: int) -> bool:
        """Whether `stop` is asked after this step: after a validation, or always without them."""
        return self.stop is not None and (self.every is None or self.is_due(step))

    @property
    def _patience(self) -> Patience | None:
        return self.stop if isinstance(self.stop, Patience) else None


def validate(recipe: Recipe, engine: Engine) -> dict[str, float]:
    """Metrics of the model and, by the names ``averaged_...``, of the averaged weights.

    Training goes on afterwards as if nothing had been validated.

    Args:
        recipe: Its `validate` is called; without one there are no metrics.
        engine: Between two windows.

    Syncs: yes.
    """
    if recipe.validate is None:
        return {}
    with _undisturbed(engine):
        found = _metrics(recipe.validate, engine, engine.models)
        averages = {name: ema.module for name, ema in engine.emas.items() if ema is not None}
        if averages:
            averaged = _metrics(recipe.validate, engine, {**engine.models, **averages})
            found |= {f"averaged_{name}": value for name, value in averaged.items()}
    return found


@contextlib.contextmanager
def _undisturbed(engine: Engine) -> Iterator[None]:
    """Put back what a validation may move: random states, modes of modules, buffers."""
    averages = [ema.module for ema in engine.emas.values() if ema is not None]
    models = [*engine.models.values(), *averages]
    modes = {module: module.training for model in models for module in model.modules()}
    buffers = [BufferRollback(model) for model in models]
    state = rng_state()
    for copies in buffers:
        copies.remember()
    try:
        yield
    finally:
        for copies in buffers:
            copies.restore()
        for module, mode in modes.items():
            module.training = mode
        set_rng_state(state)


def _metrics(
    function: Callable[[Any], float | Mapping[str, float]],
    engine: Engine,
    models: Mapping[str, nn.Module],
) -> dict[str, float]:
    for model in models.values():
        model.eval()
    with torch.no_grad(), engine.autocast():
        result = function(engine.as_given(models))
    named = result if isinstance(result, Mapping) else {"validation": result}
    return {str(name): _checked_metric(name, value) for name, value in named.items()}


def _checked_metric(name: object, value: object) -> float:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return float(value)
    if isinstance(value, (int, float)):
        return float(value)
    raise BadTypeError(
        f"Recipe.validate must return a number or a mapping of names to numbers, got"
        f" {type(value).__name__} for {name!r}."
    )
