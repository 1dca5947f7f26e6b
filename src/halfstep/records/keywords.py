"""Unknown keyword arguments: an error that names the one that was meant.

Every training library has another word for the same setting. Python's own "got an unexpected
keyword argument" sends its reader to the documentation; these errors are the answer.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import ParamSpec, TypeVar

from halfstep.records.errors import BadTypeError

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")


def explains_keywords(
    owner: str, other_names: Mapping[str, str]
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator: an unknown keyword is a `BadTypeError` that says what to write instead.

    The signature stays as it is, for `inspect`, editors and type checkers.

    Args:
        owner: What is called, for the message.
        other_names: A keyword of another library to the second half of the sentence.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        known = [name for name in inspect.signature(function).parameters if name != "self"]

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs:
                if name not in known:
                    raise BadTypeError(unknown_keyword(owner, name, known, other_names))
            return function(*args, **kwargs)

        return call

    return decorate


def explains_fields(owner: str, other_names: Mapping[str, str]) -> Callable[[type[C]], type[C]]:
    """The same for a dataclass, above its ``@dataclass``."""

    def decorate(cls: type[C]) -> type[C]:
        cls.__init__ = explains_keywords(owner, other_names)(cls.__init__)  # type: ignore[method-assign]
        return cls

    return decorate


def unknown_keyword(
    owner: str, name: str, known: Sequence[str], other_names: Mapping[str, str]
) -> str:
    """The sentence.

    Args:
        owner: What was called.
        name: The unknown keyword.
        known: Those that there are.
        other_names: As for `explains_keywords`.

    Example:
        >>> unknown_keyword("Engine", "max_nrom", ["precision", "max_norm"], {})
        'Engine has no max_nrom; did you mean max_norm?'
    """
    if hint := other_names.get(name):
        return f"{owner} has no {name}; {hint}."
    if near := difflib.get_close_matches(name, known, n=1):
        return f"{owner} has no {name}; did you mean {near[0]}?"
    return f"{owner} has no {name}; its arguments are {', '.join(known)}."
