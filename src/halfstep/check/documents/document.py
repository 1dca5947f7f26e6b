"""A file as pieces of Python: one for a script, one for a notebook, several for Markdown."""

from __future__ import annotations

import os
import re

from halfstep.check.documents.files import decode

_LINE_END = re.compile(r"\r\n|\r|\n")


def split_lines(text: str) -> list[str]:
    """Lines as the parser counts them; `str.splitlines` cuts at form feeds too."""
    return _LINE_END.split(text)


class Piece:
    """Python text inside of a document.

    Attributes:
        text: The Python.
        indent: Characters in front of each line in the document.
        cells: First line and number of each cell, in order; empty outside of notebooks.
    """

    __slots__ = ("cells", "indent", "text")

    def __init__(self, text: str, indent: int = 0, cells: tuple[tuple[int, int], ...] = ()) -> None:
        self.text = text
        self.indent = indent
        self.cells = cells

    def spot(self, line: int) -> tuple[int | None, int]:
        """Cell and line in it of a line of `text`."""
        for first, cell in reversed(self.cells):
            if line >= first:
                return cell, line - first + 1
        return None, line


class Document:
    """A Python script; the base of what holds Python in other ways.

    Args:
        path: Of the file.
        data: Its bytes.

    Attributes:
        text: Decoded.
        pieces: What can be checked.
        problems: Why other parts of it cannot.
    """

    def __init__(self, path: str, data: bytes) -> None:
        self.path = path
        self.text, self.encoding = decode(data)
        self.problems: list[str] = []
        self.pieces = self._cut()

    def _cut(self) -> list[Piece]:
        return [Piece(self.text)]

    def rebuilt(self, texts: list[str]) -> bytes:
        """The file with other pieces; all else stays as it is."""
        return self._joined(texts).encode(self.encoding)

    def _joined(self, texts: list[str]) -> str:
        return texts[0]


def open_document(path: str, data: bytes) -> Document:
    """The document that the ending of `path` says."""
    ending = os.path.splitext(path)[1].lower()
    if ending == ".ipynb":
        from halfstep.check.documents.notebook import Notebook

        return Notebook(path, data)
    if ending in (".md", ".markdown"):
        from halfstep.check.documents.markdown import MarkdownFile

        return MarkdownFile(path, data)
    return Document(path, data)
