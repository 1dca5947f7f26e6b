"""``# halfstep: ignore[HS109]``: which findings a comment silences, and which comments do not."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from io import StringIO
from typing import NamedTuple

from halfstep.rules.registry import names

# The second group is what is not written as it should be: codes without brackets, half a bracket.
_COMMENT = re.compile(
    r"#\s*halfstep:\s*ignore\b(?:\s*\[([^\]#]*)\]|(\s*\[[^#]*|\s*:?\s*HS\w*|\s*:))?", re.IGNORECASE
)


class Ignore(NamedTuple):
    """One comment.

    Attributes:
        line: Its line.
        column: Its column, from 1.
        codes: Codes or their beginnings; empty where it silences all, or nothing for a fault.
        first: First line of the statement it stands in.
        last: The statement's last line; of a loop or function, the last of its head.
        text: The comment.
        fault: What is wrong with it.
    """

    line: int
    column: int
    codes: tuple[str, ...]
    first: int
    last: int
    text: str
    fault: str

    def silences(self, code: str, line: int) -> bool:
        """Whether it speaks of a finding."""
        if not self.first <= line <= self.last:
            return False
        return code.startswith(self.codes) if self.codes else not self.fault


def ignores(text: str, tree: ast.Module) -> list[Ignore]:
    """All such comments; strings that look like one are none."""
    if not _COMMENT.search(text):
        return []
    return [_ignore(*comment, tree) for comment in _comments(text)]


def _comments(text: str) -> Iterator[tuple[int, int, str, tuple[str, ...], str]]:
    try:
        for token in tokenize.generate_tokens(StringIO(text).readline):
            found = _COMMENT.search(token.string) if token.type == tokenize.COMMENT else None
            if found:
                column = token.start[1] + found.start() + 1
                yield token.start[0], column, found.group(0), *_codes(found)
    except (tokenize.TokenError, SyntaxError):
        return  # the parser is content; what was found until here counts


def _codes(found: re.Match[str]) -> tuple[tuple[str, ...], str]:
    """The codes of a comment that are known, and what is wrong with it."""
    inside, fault = found.group(1), found.group(2)
    given = [code for code in re.split(r"[\s,]+", (inside or "").strip().upper()) if code]
    if fault or (inside is not None and not given):
        return (), "it is not written as `ignore[HS109]` or `ignore`"
    known = names()
    codes = tuple(code for code in given if any(name.startswith(code) for name in known))
    unknown = [code for code in given if code not in codes]
    return codes, f"there is no rule {', '.join(unknown)}" if unknown else ""


def _ignore(
    line: int, column: int, text: str, codes: tuple[str, ...], fault: str, tree: ast.Module
) -> Ignore:
    first, last = line, line
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            start, end = _own_lines(node)
            if start <= line <= end:
                first, last = min(first, start), max(last, end)
    return Ignore(line, column, codes, first, last, text, fault)


def _own_lines(node: ast.stmt) -> tuple[int, int]:
    """Lines of a statement without those of the statements inside of it."""
    body = getattr(node, "body", None) or getattr(node, "cases", None)
    if not body:
        return node.lineno, node.end_lineno or node.lineno
    first = body[0].lineno if isinstance(body[0], ast.stmt) else body[0].pattern.lineno
    decorated = getattr(body[0], "decorator_list", None)
    first = decorated[0].lineno if decorated else first
    return node.lineno, max(node.lineno, first - 1)
