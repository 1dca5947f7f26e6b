"""`Recipe`: everything that a training run is made of, as factories."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from halfstep.records import BadTypeError, RecipeError
from halfstep.training.loss import LossSum
from halfstep.training.schedule import Schedule


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
        unit: What the divisors count, for display: "tokens", "samples".
    """

    name: str
    model: Callable[[], nn.Module]
    loss_fn: Callable[[nn.Module, Any], Tensor | LossSum]
    batches: Callable[[], Iterable[Any]]
    optimizer: Callable[[nn.Module], Optimizer]
    validate: Callable[[nn.Module], float | Mapping[str, float]] | None = None
    schedule: Callable[[Optimizer], Schedule] | None = None
    unit: str = "tokens"

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            optional = field.name in ("validate", "schedule")
            if field.name in ("name", "unit") or (optional and value is None) or callable(value):
                continue
            hint = " (a factory, so that every run starts afresh)" if not optional else ""
            raise BadTypeError(
                f"Recipe.{field.name} must be a function{hint}, got {type(value).__name__}."
            )


def load_recipe(spec: str) -> Recipe:
    """The recipe that a command line names.

    Args:
        spec: ``lm`` or ``digits`` (built in), ``path/to/file.py:function`` or
            ``package.module:function``; the function takes no argument and returns a `Recipe`.

    Raises:
        RecipeError: It is missing, does not import or returns something else; one sentence.
    """
    where, _, function = spec.partition(":") if not _is_built_in(spec) else (spec, "", "build")
    if not function:
        raise RecipeError(
            f"no recipe {spec!r}: expected one of {', '.join(built_in_recipes())}, or"
            " path/to/file.py:function, or package.module:function."
        )
    module = _import(f"halfstep.recipes.{where}" if _is_built_in(spec) else where, spec)
    build = getattr(module, function, None)
    if not callable(build):
        known = [name for name, value in vars(module).items() if _is_own_function(value, module)]
        raise RecipeError(
            f"{where} has no function {function!r}; it has {', '.join(known) or 'none at all'}."
        )
    try:
        recipe = build()
    except ImportError as error:
        raise RecipeError(f"{spec} needs a package that is missing: {error}") from error
    if not isinstance(recipe, Recipe):
        raise RecipeError(f"{spec} must return a halfstep.Recipe, got {type(recipe).__name__}.")
    return recipe


def built_in_recipes() -> list[str]:
    """Names of the recipes that come with halfstep."""
    folder = Path(__file__).parents[1] / "recipes"
    return sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("_"))


def _is_built_in(spec: str) -> bool:
    return spec in built_in_recipes()


def _import(where: str, spec: str) -> ModuleType:
    try:
        return _import_file(Path(where)) if where.endswith(".py") else _import_module(where)
    except (RecipeError, KeyboardInterrupt):
        raise
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        at = f" at {Path(last.filename).name}:{last.lineno}" if last.lineno else ""
        text = str(error).splitlines()[0] if str(error) else ""
        raise RecipeError(
            f"{where} of recipe {spec!r} failed to import: {type(error).__name__}: {text}{at}"
        ) from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise RecipeError(f"no file {str(path)!r}; give the path to a .py file and :function.")
    name = f"halfstep_recipe_{path.stem}"
    module_spec = importlib.util.spec_from_file_location(name, path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module  # dataclasses and pickle look a module up by its name
    sys.path.insert(0, str(path.resolve().parent))  # its neighbours, as `python file.py` has them
    try:
        module_spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(str(path.resolve().parent))
    return module


def _import_module(name: str) -> ModuleType:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    return importlib.import_module(name)


def _is_own_function(value: object, module: ModuleType) -> bool:
    return callable(value) and getattr(value, "__module__", None) == module.__name__
