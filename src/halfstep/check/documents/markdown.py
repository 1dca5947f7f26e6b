"""Python in the code blocks of Markdown; each block is a program of its own.

What was typed into an interpreter (``>>>``) is no program: it is passed over.
"""

from __future__ import annotations

import re

from halfstep.check.documents.document import Document, Piece, split_lines

_OPEN = re.compile(r"^([ \t]*)(`{3,}|~{3,})[ \t]*(?:python3?|py)\b(?![^`]*`)", re.IGNORECASE)
_OTHER = re.compile(r"^[ \t]*(`{3,}|~{3,})")


class MarkdownFile(Document):
    """Markdown; the lines of a piece count as in the file."""

    def _cut(self) -> list[Piece]:
        self._lines = split_lines(self.text)
        self._blocks = list(_blocks(self._lines))
        return [self._piece(*block) for block in self._blocks]

    def _piece(self, first: int, last: int, indent: str) -> Piece:
        code = [line.removeprefix(indent) for line in self._lines[first:last]]
        return Piece("\n" * first + "\n".join(code), indent=len(indent))

    def _joined(self, texts: list[str]) -> str:
        end = "\r\n" if "\r\n" in self.text else "\n"
        lines = list(self._lines)
        blocks = zip(self._blocks, self.pieces, texts, strict=True)
        for (first, last, indent), piece, text in reversed(list(blocks)):
            if text != piece.text:
                code = split_lines(text)[first:]
                lines[first:last] = [indent + line if line else line for line in code]
        return end.join(lines)


def _blocks(lines: list[str]) -> list[tuple[int, int, str]]:
    """First line, line behind the last one, and indentation of each Python block."""
    found: list[tuple[int, int, str]] = []
    number = 0
    while number < len(lines):
        opening, fence = _OPEN.match(lines[number]), _OTHER.match(lines[number])
        number += 1
        if fence is None:
            continue
        mark = fence.group(1)
        close = re.compile(rf"^[ \t]*{re.escape(mark[0])}{{{len(mark)},}}[ \t]*$")
        first = number
        while number < len(lines) and not close.match(lines[number]):
            number += 1
        if opening and not any(line.lstrip().startswith(">>>") for line in lines[first:number]):
            found.append((first, number, opening.group(1)))
        number += 1
    return found
