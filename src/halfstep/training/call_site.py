"""Where in the user's code a call comes from, and which line there is meant."""

from __future__ import annotations

import linecache
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import halfstep

_OURS = tuple(str(Path(module.__path__[0])) + os.sep for module in (halfstep, torch))
_NEAR = 40  # lines


@dataclass(frozen=True)
class CallSite:
    """A line of the user's code.

    Attributes:
        path: Of its file.
        line: Its number, from 1.
    """

    path: str
    line: int

    def __str__(self) -> str:
        text = linecache.getline(self.path, self.line).strip()
        return f"{Path(self.path).name}:{self.line}" + (f" `{text}`" if text else "")


def call_site() -> CallSite | None:
    """The innermost line on the stack that is neither halfstep's nor torch's."""
    frame = _users_frame()
    return None if frame is None else CallSite(frame.f_code.co_filename, frame.f_lineno)


def line_between(first: CallSite | None, last: CallSite | None, pattern: str) -> CallSite | None:
    """The first line after `first` and before `last` that matches, where both are in one file."""
    if first is None or last is None or first.path != last.path:
        return None
    end = last.line if last.line > first.line else first.line + _NEAR // 2  # a loop went round
    return _matching(first.path, range(first.line + 1, end), pattern)


def call_of(thing: Any, method: str) -> CallSite | None:
    """The line near the present call that calls a method of an object that is a variable there."""
    frame = _users_frame()
    if frame is None:
        return None
    names = [n for n, v in {**frame.f_globals, **frame.f_locals}.items() if v is thing]
    if not names:
        return None
    pattern = rf"\b({'|'.join(map(re.escape, names))})\.{method}\("
    path, line = frame.f_code.co_filename, frame.f_lineno
    return _matching(path, range(max(1, line - _NEAR), line + _NEAR), pattern)


def _matching(path: str, lines: range, pattern: str) -> CallSite | None:
    for number in lines:
        text = linecache.getline(path, number).split("#")[0]
        if re.search(pattern, text):
            return CallSite(path, number)
    return None


def _users_frame() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return frame
