"""The line of the user's code that an op was called from."""

from __future__ import annotations

import contextlib
import functools
import os
import traceback
from pathlib import Path
from types import FrameType

import torch

_TORCH = os.path.dirname(torch.__file__) + os.sep
_HALFSTEP = str(Path(__file__).parents[1]) + os.sep
_RECIPES = os.path.join(_HALFSTEP, "recipes") + os.sep  # written as a user would

Line = tuple[str, int]
_is_foreign: dict[str, bool] = {}


def user_line(frame: FrameType | None) -> Line | None:
    """File and line of the innermost frame that belongs neither to torch nor to halfstep.

    Args:
        frame: Where to begin, outwards.
    """
    while frame is not None:
        name = frame.f_code.co_filename
        foreign = _is_foreign.get(name)
        if foreign is None:
            foreign = _is_foreign[name] = _belongs_to_others(name)
        if not foreign:
            return name, frame.f_lineno
        frame = frame.f_back
    return None


def line_of_error(error: BaseException) -> Line | None:
    """File and line of the innermost user frame of a traceback.

    Args:
        error: After it was raised.
    """
    frames = [(f.filename, f.lineno or 0) for f in traceback.extract_tb(error.__traceback__)]
    return next((line for line in reversed(frames) if not _belongs_to_others(line[0])), None)


@functools.lru_cache(maxsize=4096)  # so that all ops of a line share one text
def line_text(line: Line | None) -> str:
    """``model.py:12``, relative to the working folder where the file lies in it."""
    if line is None:
        return ""
    path = Path(line[0])
    with contextlib.suppress(ValueError, OSError):
        return f"{path.relative_to(Path.cwd()).as_posix()}:{line[1]}"
    return f"{path.name}:{line[1]}"


def _belongs_to_others(name: str) -> bool:
    if name.startswith(_RECIPES):
        return False
    if name.startswith((_TORCH, _HALFSTEP)):
        return True
    return name.startswith(("<frozen", "<eval_with_key>", "<__"))  # generated code
