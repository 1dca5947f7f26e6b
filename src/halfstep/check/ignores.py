"""``# halfstep: ignore[HS109]``: which findings a comment silences, and which comments do not."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from io import StringIO
from typing import NamedTuple

_COMMENT = re.compile(r"#\s*halfstep:\s*ignore\b(?:\s*\[([\w\s,]*)\])?")


class Ignore(NamedTuple):
    """One comment.

    Attributes:
        line: Its line.
        column: Its column, from 1.
        codes: Codes or their beginnings; empty where it silences all.
        first: First line of the statement it stands in.
        last: The statement's last line; of a loop or function, the last of its head.
        text: The comment.
    """

    line: int
    column: int
    codes: tuple[str, ...]
    first: int
    last: int
    text: str

    def silences(self, code: str, line: int) -> bool:
        """Whether it speaks of a finding."""
        return self.first <= line <= self.last and (not self.codes or code.startswith(self.codes))


def ignores(text: str, tree: ast.Module) -> list[Ignore]:
    """All such comments; strings that look like one are none."""
    if not _COMMENT.search(text):
        return []
    return [_ignore(*comment, tree) for comment in _comments(text)]


def _comments(text: str) -> Iterator[tuple[int, int, str, tuple[str, ...]]]:
    try:
        for token in tokenize.generate_tokens(StringIO(text).readline):
            found = _COMMENT.search(token.string) if token.type == tokenize.COMMENT else None
            if found:
                codes = re.split(r"[\s,]+", (found.group(1) or "").strip().upper())
                column = token.start[1] + found.start() + 1
                yield token.start[0], column, found.group(0), tuple(c for c in codes if c)
    except (tokenize.TokenError, SyntaxError):
        return  # the parser is content; what was found until here counts


def _ignore(line: int, column: int, text: str, codes: tuple[str, ...], tree: ast.Module) -> Ignore:
    first, last = line, line
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            start, end = _own_lines(node)
            if start <= line <= end:
                first, last = min(first, start), max(last, end)
    return Ignore(line, column, codes, first, last, text)


def _own_lines(node: ast.stmt) -> tuple[int, int]:
    """Lines of a statement without those of the statements inside of it."""
    body = getattr(node, "body", None) or getattr(node, "cases", None)
    if not body:
        return node.lineno, node.end_lineno or node.lineno
    first = body[0].lineno if isinstance(body[0], ast.stmt) else body[0].pattern.lineno
    decorated = getattr(body[0], "decorator_list", None)
    first = decorated[0].lineno if decorated else first
    return node.lineno, max(node.lineno, first - 1)
