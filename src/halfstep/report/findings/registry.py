"""Output formats by the names of their files; one is imported when it is asked for."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from halfstep.records.errors import BadValueError

if TYPE_CHECKING:
    from halfstep.report.findings.checked import Checked

_FOLDER = os.path.join(os.path.dirname(__file__), "formats")
DEFAULT = "text"


class Format(NamedTuple):
    """A way to write findings.

    Attributes:
        name: What ``--format`` calls it.
        text: What it is for; the first line is a whole sentence.
        render: Gives the lines of the output.
    """

    name: str
    text: str
    render: Callable[[Checked], Iterable[str]]


@functools.cache
def names() -> tuple[str, ...]:
    """Names of all formats, the default first.

    Example:
        >>> names()[0]
        'text'
    """
    files = (name for name in os.listdir(_FOLDER) if name.endswith(".py"))
    stems = sorted(name[:-3] for name in files if not name.startswith("_"))
    return tuple(sorted(stems, key=lambda name: name != DEFAULT))


@functools.cache
def load(name: str) -> Format:
    """The format called `name`; imports its file."""
    if name not in names():
        raise BadValueError(f"there is no format {name!r}; there are {', '.join(names())}.")
    module = importlib.import_module(f"halfstep.report.findings.formats.{name}")
    return Format(name, (module.__doc__ or "").strip(), module.render)
