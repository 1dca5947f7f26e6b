"""What torch and the frameworks around it offer, by name; each file of this folder adds its part.

Functions stand under their dotted names. ``"*.GradScaler"`` is a name in whatever module:
frameworks export torch's under names of their own, and scripts import them with a star.
"""

from __future__ import annotations

import ast
import functools
import importlib
import pkgutil
from collections.abc import Callable
from typing import Generic, TypeVar

from halfstep.check.values.base import External, Unknown, Value
from halfstep.check.values.call import Call
from halfstep.check.values.run import Run

OfFunction = Callable[[Call, Run], Value | None]
OfMethod = Callable[[Unknown, Call, Run], Value | None]
OfAttribute = Callable[[Unknown, Run], Value | None]
_Answer = TypeVar("_Answer")


class Table(Generic[_Answer]):
    """Names and what they do."""

    def __init__(self) -> None:
        self._answers: dict[str, _Answer] = {}
        self._where: list[tuple[Callable[[str], bool], _Answer]] = []
        self._found: dict[str, _Answer | None] = {}

    def __call__(self, *names: str) -> Callable[[_Answer], _Answer]:
        """Decorate what answers for `names`."""

        def add(answer: _Answer) -> _Answer:
            for name in names:
                assert name not in self._answers, name
                self._answers[name] = answer
            return answer

        return add

    def where(self, test: Callable[[str], bool]) -> Callable[[_Answer], _Answer]:
        """Decorate what answers for the names that pass a test and are not listed."""

        def add(answer: _Answer) -> _Answer:
            self._where.append((test, answer))
            return answer

        return add

    def find(self, name: str) -> _Answer | None:
        """What answers for a name; a name is looked for once."""
        if name not in self._found:
            last = name.rpartition(".")[2]
            answer = self._answers.get(name) or self._answers.get(f"*.{last}")
            tested = (answer for test, answer in self._where if test(name))
            self._found[name] = answer if answer is not None else next(tested, None)
        return self._found[name]


functions: Table[OfFunction] = Table()
methods: Table[OfMethod] = Table()  # of objects that are known by their use alone: models, losses
attributes: Table[OfAttribute] = Table()  # of the same

Watch = Callable[[External, Call, Run], Value | None]
_watchers: list[Watch] = []


def watches(watch: Watch) -> Watch:
    """Decorate what answers for a function by its arguments, before the table is asked."""
    _watchers.append(watch)
    return watch


def by_arguments(function: External, call: Call, run: Run) -> Value | None:
    """What the arguments make of a call, as gradients do of the functions that measure them."""
    for watch in _watchers:
        answer = watch(function, call, run)
        if answer is not None:
            return answer
    return None


Operate = Callable[[ast.operator, Value, Value, Run], Value | None]
_operators: list[Operate] = []


def operators(operate: Operate) -> Operate:
    """Decorate what answers for an operator between two values."""
    _operators.append(operate)
    return operate


def by_operands(op: ast.operator, left: Value, right: Value, run: Run) -> Value | None:
    """What the operands make of an operator, as a scale does of what it multiplies."""
    for operate in _operators:
        answer = operate(op, left, right, run)
        if answer is not None:
            return answer
    return None


@functools.cache
def load() -> None:
    """Import all files of the folder, which fills the tables; once, every path asks for it."""
    from halfstep.check import torch_models

    for found in pkgutil.iter_modules(torch_models.__path__):
        importlib.import_module(f"{torch_models.__name__}.{found.name}")
