"""The line of the user's code that something comes from."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import NamedTuple

import torch

_HALFSTEP = str(Path(__file__).parents[1])
_TORCH = str(Path(torch.__file__).parent)


class SourceLine(NamedTuple):
    """A place in a file."""

    path: str
    line: int


def caller() -> SourceLine:
    """The innermost line on the stack that is neither torch's nor halfstep's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_HALFSTEP, _TORCH)):
        frame = frame.f_back
    return SourceLine(frame.f_code.co_filename, frame.f_lineno)


def line_of_class(cls: type) -> SourceLine:
    """Where a class is written; line 0 of an unknown file for one without source."""
    try:
        path = inspect.getsourcefile(cls)
        return SourceLine(path or "<unknown>", inspect.getsourcelines(cls)[1])
    except (OSError, TypeError):
        return SourceLine("<unknown>", 0)
