"""Random generators that batches are drawn from, found where a recipe's data holds them."""

from __future__ import annotations

import contextlib
import functools
import random
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, GeneratorType, MethodType
from typing import Any

import torch

from halfstep.training.run.data.stream import plain

# torch's and Hugging Face's names of the parts of a loader, a sampler and a dataset
_PARTS = frozenset({"sampler", "batch_sampler", "dataset", "datasets", "data_source", "base"})
_DEPTH = 4
_SINGLE = (GeneratorType, zip, map, enumerate, filter)


class Generators:
    """The generators of torch, Python and NumPy that a recipe's data holds, by where they are.

    Looked for in the loader (or whatever `batches()` returned), its sampler and dataset, and among
    the names from outside that the function `batches` uses.

    Args:
        batches: The recipe's function.
        source: What it returned.
    """

    def __init__(self, batches: Callable[[], Any], source: object) -> None:
        self._found: dict[str, Any] = {}
        for name, value in held_from_outside(batches).items():
            self._look(f"batches.{name}", value, _DEPTH)
        self._look("source", source, _DEPTH)

    def state(self) -> dict[str, Any]:
        """State of each, as plain data and tensors."""
        return {
            path: state
            for path, generator in self._found.items()
            if (state := _state(generator)) is not None
        }

    def set_state(self, states: dict[str, Any]) -> None:
        """Go to where `state` was taken; a generator that is not here now is left out."""
        for path, state in states.items():
            if path in self._found:
                _set_state(self._found[path], state)

    def without_state(self) -> str | None:
        """Where a generator is whose position cannot be read."""
        return next((p for p, generator in self._found.items() if _state(generator) is None), None)

    def _look(self, path: str, value: object, depth: int) -> None:
        if _is_generator(value):
            self._found[path] = value
        elif isinstance(value, (list, tuple)) and depth:
            for number, part in enumerate(value[:64]):
                if _attributes(part):
                    self._look(f"{path}[{number}]", part, depth - 1)
        elif depth:
            for name, part in _attributes(value).items():
                if _is_generator(part):
                    self._found[f"{path}.{name}"] = part
                elif name.strip("_") in _PARTS:
                    self._look(f"{path}.{name}", part, depth - 1)


def single_pass_from_outside(batches: Callable[[], Any]) -> tuple[str, str] | None:
    """Name and kind of a generator, ``zip`` or ``map`` that was made outside and is used inside."""
    used = None
    if isinstance(batches, MethodType) and isinstance(batches.__func__, FunctionType):
        used = _names(batches.__func__.__code__)  # which is not all that its object has
    for name, value in held_from_outside(batches).items():
        if isinstance(value, _SINGLE) and (used is None or name in used):
            return name, type(value).__name__
    return None


def held_from_outside(function: Callable[..., Any]) -> dict[str, object]:
    """What a function uses that was made before it was called, by name."""
    if isinstance(function, functools.partial):
        given = {str(number): value for number, value in enumerate(function.args)}
        return given | dict(function.keywords) | held_from_outside(function.func)
    if isinstance(function, MethodType):
        return _attributes(function.__self__) | held_from_outside(function.__func__)
    if not isinstance(function, FunctionType):
        return _attributes(function)
    found: dict[str, object] = {}
    for name in sorted(_names(function.__code__)):
        if name in function.__globals__:
            found[name] = function.__globals__[name]
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        with contextlib.suppress(ValueError):  # a cell that is still empty
            found[name] = cell.cell_contents
    for number, value in enumerate(function.__defaults__ or ()):
        found[f"default {number}"] = value
    return found


def parts_of(source: object) -> Iterator[object]:
    """A loader, its samplers and its dataset: whoever may have to know which pass begins."""
    seen: list[object] = []
    for path in ("", "sampler", "batch_sampler", "batch_sampler.sampler", "dataset"):
        part: object = source
        for name in filter(None, path.split(".")):
            part = getattr(part, name, None)
        if part is not None and not any(part is other for other in seen):
            seen.append(part)
            yield part


def _names(code: CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _attributes(value: object) -> dict[str, object]:
    """Those of an instance; a module or a class holds nothing that belongs to the data."""
    if isinstance(value, (type, FunctionType, type(sys), torch.Tensor, torch.nn.Module)):
        return {}
    found = getattr(value, "__dict__", None)
    return dict(found) if isinstance(found, dict) else {}


def _is_generator(value: object) -> bool:
    if isinstance(value, (torch.Generator, random.Random)):
        return value is not torch.default_generator
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return False
    return isinstance(value, (numpy.random.Generator, numpy.random.RandomState))


def _state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.SystemRandom):
        return None
    if isinstance(generator, random.Random):
        return generator.getstate()
    if hasattr(generator, "bit_generator"):
        return plain(generator.bit_generator.state)
    return plain(generator.get_state(legacy=False))  # a RandomState


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        version, keys, gauss = state
        generator.setstate((version, tuple(keys), gauss))
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)
