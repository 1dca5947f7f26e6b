"""Edits of a text by ranges; all that is not edited stays as it is, byte for byte."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from halfstep.rules.events import Place
from halfstep.rules.rule import Edit

_LINE_END = re.compile(r"\r\n|\r|\n")
_Span = tuple[int, int, str]


def apply(text: str, groups: Iterable[tuple[Edit, ...]]) -> tuple[str, list[bool]]:
    """Make the edits of each group, or none of the group.

    A group that overlaps with an earlier one has to wait: the text is checked again anyway. One
    after which the text is no Python is left out.

    Args:
        text: Python, without mistakes of syntax.
        groups: The edits of one finding each.

    Returns:
        The new text, and for each group whether it is in it.
    """
    starts = [0, *(match.end() for match in _LINE_END.finditer(text))]
    taken: list[_Span] = []
    made: list[bool] = []
    new = text
    for group in groups:
        spans = [_span(text, starts, edit) for edit in group]
        free = not any(_overlap(a, b) for a in spans for b in taken)
        tried = _replaced(text, [*taken, *spans]) if free else text
        made.append(free and _is_python(tried))
        if made[-1]:
            taken += spans
            new = tried
    return new, made


def _span(text: str, starts: list[int], edit: Edit) -> _Span:
    place: Place = edit.place
    start = _offset(text, starts, place.line, place.column)
    return start, _offset(text, starts, place.end_line, place.end_column), edit.text


def _offset(text: str, starts: list[int], line: int, column: int) -> int:
    """Characters in front of a place whose column counts bytes."""
    if line > len(starts):
        return len(text)
    start = starts[line - 1]
    end = starts[line] if line < len(starts) else len(text)
    return start + len(text[start:end].encode()[: column - 1].decode(errors="ignore"))


def _overlap(one: _Span, other: _Span) -> bool:
    same_point = one[0] == one[1] == other[0] == other[1]
    return same_point or (one[0] < other[1] and other[0] < one[1])


def _replaced(text: str, spans: list[_Span]) -> str:
    for start, end, new in sorted(spans, key=lambda span: span[:2], reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True
