"""Every public name exists, is documented, and its docstring names its arguments."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
from types import ModuleType

import pytest

import halfstep as hs

NAMES = [name for name in hs.__all__ if name != "__version__"]
MODULES = [
    name for _, name, _ in pkgutil.walk_packages(hs.__path__, "halfstep.") if "__main__" not in name
]


def callables() -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    for name in NAMES:
        value = getattr(hs, name)
        if inspect.isclass(value):
            found.append((name, value))
            for method, function in vars(value).items():
                if inspect.isfunction(function) and not method.startswith("_"):
                    found.append((f"{name}.{method}", function))
        elif inspect.isfunction(value):
            found.append((name, value))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_public_name_is_there_and_in_dir(name: str) -> None:
    assert getattr(hs, name) is not None
    assert name in dir(hs)


@pytest.mark.parametrize(
    ("name", "value"), callables(), ids=lambda v: v if isinstance(v, str) else ""
)
def test_public_callable_has_a_docstring(name: str, value: object) -> None:
    assert inspect.getdoc(value), name


@pytest.mark.parametrize(
    ("name", "value"), callables(), ids=lambda v: v if isinstance(v, str) else ""
)
def test_documented_arguments_are_the_signature(name: str, value: object) -> None:
    doc = inspect.getdoc(value) or ""
    section = re.search(r"^Args:\n((?:[ ]+.*\n?|\n)+)", doc, re.MULTILINE)
    if section is None:
        return
    documented = re.findall(r"^    (\w+(?:, \w+)*):", section.group(1), re.MULTILINE)
    names = {name for group in documented for name in group.split(", ")}
    parameters = inspect.signature(value).parameters  # type: ignore[arg-type]
    assert names == {p for p in parameters if p != "self"}


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Enigne'"):
        hs.Enigne  # noqa: B018


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name: str) -> None:
    module: ModuleType = importlib.import_module(name)
    assert doctest.testmod(module).failed == 0
