"""Finding the recipe that a command line names."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

import halfstep
from halfstep.records import RecipeError
from halfstep.training.run.recipe import Recipe

_PACKAGE = Path(halfstep.__file__).parent


def load_recipe(spec: str) -> Recipe:
    """The recipe that a command line names.

    Args:
        spec: ``lm`` or ``digits`` (built in), ``path/to/file.py:function`` or
            ``package.module:function``; the function takes no argument and returns a `Recipe`.

    Raises:
        RecipeError: It is missing, does not import, fails or returns something else; one sentence.
    """
    built_in = spec in built_in_recipes()
    where, _, function = (spec, ":", "build") if built_in else spec.partition(":")
    if not (where and function):
        raise RecipeError(
            f"no recipe {spec!r}: expected one of {', '.join(built_in_recipes())}, or"
            " path/to/file.py:function, or package.module:function."
        )
    module = _import(f"halfstep.recipes.{where}" if built_in else where, spec)
    build = getattr(module, function, None)
    if not callable(build):
        known = [name for name, value in vars(module).items() if _is_own_function(value, module)]
        raise RecipeError(
            f"{where} has no function {function!r}; it has {', '.join(known) or 'none at all'}."
        )
    try:
        recipe = build()
    except RecipeError:
        raise
    except Exception as error:
        raise RecipeError(f"{spec} failed: {_in_one_line(error)}") from error
    if not isinstance(recipe, Recipe):
        raise RecipeError(f"{spec} must return a halfstep.Recipe, got {type(recipe).__name__}.")
    return recipe


def built_in_recipes() -> list[str]:
    """Names of the recipes that come with halfstep."""
    folder = _PACKAGE / "recipes"
    return sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("_"))


def _import(where: str, spec: str) -> ModuleType:
    path = list(sys.path)
    try:
        return _import_file(Path(where)) if where.endswith(".py") else _import_module(where)
    except BaseException as error:
        sys.path[:] = path
        if isinstance(error, (RecipeError, KeyboardInterrupt)):
            raise
        raise RecipeError(f"{spec} failed to import: {_in_one_line(error)}") from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise RecipeError(f"no file {str(path)!r}; give the path to a .py file and :function.")
    name = f"halfstep_recipe_{path.stem}"
    module_spec = importlib.util.spec_from_file_location(name, path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    _add_to_path(path.resolve().parent)  # its neighbours, as `python file.py` has them
    sys.modules[name] = module  # dataclasses and pickle look a module up by its name
    try:
        module_spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import_module(name: str) -> ModuleType:
    _add_to_path(Path.cwd())
    return importlib.import_module(name)


def _add_to_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _in_one_line(error: BaseException) -> str:
    """Kind, first line of the text, and the place in the user's code."""
    text = next(iter(str(error).splitlines()), "")
    line = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if isinstance(error, SyntaxError) and error.filename:
        return f"{line} at {Path(error.filename).name}:{error.lineno}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<") and _PACKAGE not in Path(frame.filename).parents
    ]
    places = [f for f in frames if "importlib" not in Path(f.filename).parts]
    return f"{line} at {Path(places[-1].filename).name}:{places[-1].lineno}" if places else line


def _is_own_function(value: object, module: ModuleType) -> bool:
    return callable(value) and getattr(value, "__module__", None) == module.__name__
