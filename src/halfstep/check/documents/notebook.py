"""Jupyter notebooks: the code cells as one program, and edits that leave the JSON as it was."""

from __future__ import annotations

import ast
import json
import re
from json.decoder import JSONDecodeError

from halfstep.check.documents.document import Document, Piece
from halfstep.check.documents.files import Unreadable

_MAGIC = re.compile(r"^\s*([%!?]|.*\?\s*$|[\w., ]+=\s*[%!])")
_PYTHON_CELLS = re.compile(r"^%%(time|timeit|capture|prun)\b")
_SPACE = re.compile(r"[ \t\r\n]*")
_BREAK = "# halfstep: next cell"  # between cells; no edit touches it
_HIDDEN = re.compile(r"^\s*(?:pass  )?# halfstep: magic (\d+)$")


class Notebook(Document):
    """A notebook; lines that IPython alone understands are kept out of sight."""

    def _cut(self) -> list[Piece]:
        self._hidden: list[str] = []
        self._cells: list[_Cell] = []
        joined: list[str] = []
        marks: list[tuple[int, int]] = []
        for cell in _code_cells(self.text):
            lines = self._python(cell)
            if lines is not None:
                self._cells.append(cell)
                marks.append((len(joined) + 2, cell.number))
                joined += [_BREAK, *lines]
        return [Piece("\n".join(joined) + "\n", cells=tuple(marks))]

    def _python(self, cell: _Cell) -> list[str] | None:
        """Lines of a cell as Python, or why it has none."""
        lines = cell.source.split("\n")
        if lines[0].startswith("%%") and not _PYTHON_CELLS.match(lines[0]):
            return None  # another language
        try:
            if _is_python(cell.source):
                return lines
            lines = self._without_magics(lines)
            ast.parse("\n".join(lines))
        except (SyntaxError, ValueError) as error:
            self.problems.append(f"cell {cell.number}: {getattr(error, 'msg', error)}")
            return None
        except (RecursionError, MemoryError):
            self.problems.append(f"cell {cell.number}: nested too deeply")
            return None
        return lines

    def _without_magics(self, lines: list[str]) -> list[str]:
        shown, continued = [], False
        for line in lines:
            mark = f"# halfstep: magic {len(self._hidden)}"
            is_magic = _MAGIC.match(line) is not None
            if continued:
                shown.append(mark)
            elif is_magic:
                shown.append(f"{line[: len(line) - len(line.lstrip())]}pass  {mark}")
            else:
                shown.append(line)
            if continued or is_magic:
                self._hidden.append(line)
                continued = line.endswith("\\")
        return shown

    def _joined(self, texts: list[str]) -> str:
        parts = re.split(rf"^{_BREAK}\n", texts[0].removesuffix("\n"), flags=re.MULTILINE)[1:]
        text = self.text
        for cell, part in reversed(list(zip(self._cells, parts, strict=True))):
            source = "\n".join(self._shown_again(line) for line in part.split("\n"))
            if cell is not self._cells[-1]:
                source = source.removesuffix("\n")
            if source != cell.source:
                text = cell.replaced(text, source)
        return text

    def _shown_again(self, line: str) -> str:
        hidden = _HIDDEN.match(line)
        return self._hidden[int(hidden.group(1))] if hidden else line


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


class _Cell:
    """A code cell and where its source stands in the JSON."""

    def __init__(self, number: int, source: str, items: list[tuple[int, int]], is_list: bool):
        self.number = number
        self.source = source
        self._items = items
        self._is_list = is_list

    def replaced(self, text: str, source: str) -> str:
        """The JSON with another source in this cell; strings that stay are not written anew."""
        if not self._is_list:
            (start, end) = self._items[0]
            return text[:start] + _quoted(source, text[start:end]) + text[end:]
        lines = [line for line in re.split(r"(?<=\n)", source) if line]
        old = [text[start:end] for start, end in self._items]
        by_value = {json.loads(item): item for item in old}
        between = text[self._items[0][1] : self._items[1][0]] if len(old) > 1 else ", "
        written = between.join(by_value.get(line) or _quoted(line, old[0]) for line in lines)
        return text[: self._items[0][0]] + written + text[self._items[-1][1] :]


def _quoted(value: str, like: str) -> str:
    return json.dumps(value, ensure_ascii=like.isascii() and "\\u" in like)


def _code_cells(text: str) -> list[_Cell]:
    try:
        cells = _Scanner(text).cells()
    except (JSONDecodeError, IndexError, KeyError, TypeError, AttributeError, RecursionError):
        raise Unreadable("not a notebook") from None
    return cells


class _Scanner:
    """Finds the strings of ``cells[*].source``, with their places; the rest is skipped."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._skip = json.JSONDecoder().raw_decode

    def cells(self) -> list[_Cell]:
        if "worksheets" in self._text[:2000] and '"cells"' not in self._text:
            raise Unreadable("a notebook of version 3; convert it with: jupyter nbconvert")
        found: list[_Cell] = []
        for key, start in self._members(self._space(0)):
            if key == "cells":
                for number, place in enumerate(self._elements(start), 1):
                    found += self._cell(place, number)
        return found

    def _cell(self, start: int, number: int) -> list[_Cell]:
        members = dict(self._members(start))
        if self._skip(self._text, members["cell_type"])[0] != "code":
            return []
        at = members["source"]
        value, end = self._skip(self._text, at)
        if isinstance(value, str):
            return [_Cell(number, value, [(at, end)], is_list=False)]
        places = [(place, self._skip(self._text, place)[1]) for place in self._elements(at)]
        return [_Cell(number, "".join(value), places, is_list=True)] if value else []

    def _members(self, at: int) -> list[tuple[str, int]]:
        """Key and place of the value of each member of the object at `at`."""
        if self._text[at] != "{":
            raise TypeError
        found: list[tuple[str, int]] = []
        at = self._space(at + 1)
        while self._text[at] != "}":
            key, at = self._skip(self._text, at)
            at = self._space(self._space(at) + 1)
            found.append((key, at))
            at = self._next(at)
        return found

    def _elements(self, at: int) -> list[int]:
        """Place of each element of the array at `at`."""
        if self._text[at] != "[":
            raise TypeError
        found: list[int] = []
        at = self._space(at + 1)
        while self._text[at] != "]":
            found.append(at)
            at = self._next(at)
        return found

    def _next(self, at: int) -> int:
        """Behind the value at `at` and the comma after it."""
        at = self._space(self._skip(self._text, at)[1])
        return self._space(at + 1) if self._text[at] == "," else at

    def _space(self, at: int) -> int:
        match = _SPACE.match(self._text, at)
        return match.end() if match else at
