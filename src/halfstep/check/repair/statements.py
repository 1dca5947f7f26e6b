"""Statements of a file in their blocks, and edits of whole lines."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from halfstep.check.documents.document import split_lines
from halfstep.check.source.module import Module
from halfstep.rules.events import Place
from halfstep.rules.rule import Edit

_BLOCKS = ("body", "orelse", "finalbody")


class Spot(NamedTuple):
    """A statement in its block.

    Attributes:
        block: Its neighbours and itself.
        position: Its place among them.
        owner: The statement or module that the block belongs to.
    """

    block: list[ast.stmt]
    position: int
    owner: ast.AST

    @property
    def statement(self) -> ast.stmt:
        """The statement itself."""
        return self.block[self.position]

    @property
    def later(self) -> list[ast.stmt]:
        """The statements behind it in the block."""
        return self.block[self.position + 1 :]


def spots_of(tree: ast.Module, line: int) -> list[Spot]:
    """The statements around a line, innermost first."""
    found: list[Spot] = []
    owner: ast.AST | None = tree
    while owner is not None:
        inside = owner
        owner = None
        for block in _blocks(inside):
            for index, statement in enumerate(block):
                if statement.lineno <= line <= (statement.end_lineno or statement.lineno):
                    found.insert(0, Spot(block, index, inside))
                    owner = statement
    return found


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in _BLOCKS:
        block = getattr(node, name, None)
        if isinstance(block, list):
            yield block
    for inner in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield inner.body


def call_of(statement: ast.stmt) -> ast.Call | None:
    """The call that a statement is, or whose result it keeps."""
    value = getattr(statement, "value", None)
    plain = isinstance(statement, (ast.Expr, ast.Assign, ast.AnnAssign))
    return value if plain and isinstance(value, ast.Call) else None


class Lines:
    """Edits of whole lines of a file."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._lines = split_lines(module.text)
        self._end = "\r\n" if "\r\n" in module.text else "\n"

    def stands_alone(self, statement: ast.stmt) -> bool:
        """Whether nothing else is on its lines, but for a comment."""
        last = statement.end_lineno or statement.lineno
        before = self._lines[statement.lineno - 1].encode()[: statement.col_offset].decode()
        after = self._lines[last - 1].encode()[statement.end_col_offset :].decode().strip()
        return not before.strip() and (not after or after.startswith("#"))

    def indent(self, statement: ast.stmt) -> str:
        """What is in front of it."""
        return self._lines[statement.lineno - 1].encode()[: statement.col_offset].decode()

    def before(self, statement: ast.stmt, text: str) -> Edit:
        """A new line in front of a statement, indented as it is."""
        line = statement.lineno
        place = Place(self._module.path, line, 1, line, 1)
        return Edit(place, f"{self.indent(statement)}{text}{self._end}")

    def behind(self, statement: ast.stmt, *texts: str) -> Edit:
        """New lines behind a statement and its comment, indented as it is."""
        line = statement.end_lineno or statement.lineno
        column = len(self._lines[line - 1].encode()) + 1
        indent = self.indent(statement)
        new = "".join(f"{self._end}{indent}{text}" for text in texts)
        return Edit(Place(self._module.path, line, column, line, column), new)

    def without(self, statement: ast.stmt) -> Edit:
        """A statement with its comment, taken away."""
        last = statement.end_lineno or statement.lineno
        return Edit(Place(self._module.path, statement.lineno, 1, last + 1, 1), "")

    def text(self, place: Place) -> str:
        """What stands at a place inside of one line."""
        line = self._lines[place.line - 1].encode()
        return line[place.column - 1 : place.end_column - 1].decode(errors="ignore")

    def entry_behind(self, place: Place, text: str) -> Edit:
        """One more entry of a dict behind the one that ends at `place`, on a line of its own.

        On the same line where the entry shares its line with others.
        """
        line = self._lines[place.end_line - 1]
        before = self._lines[place.line - 1].encode()[: place.column - 1].decode()
        after = line.encode()[place.end_column - 1 :].decode()
        indent = before[: len(before) - len(before.lstrip())]
        alone = bool(re.fullmatch(r"""\s*(["'][^"']*["']\s*:|\w+=)\s*""", before))
        at = place._replace(line=place.end_line, column=place.end_column)
        if alone and re.match(r"\s*,\s*(#|$)", after):
            column = len(line.encode()) + 1
            end = Place(place.path, place.end_line, column, place.end_line, column)
            return Edit(end, f"{self._end}{indent}{text},")
        if alone and not after.strip():
            return Edit(at, f",{self._end}{indent}{text}")
        return Edit(at, f", {text}")

    def moved_behind(self, statement: ast.stmt, target: ast.stmt) -> tuple[Edit, ...]:
        """A statement with its comment, taken away and put behind `target`."""
        first, last = statement.lineno, statement.end_lineno or statement.lineno
        text = self._end.join(self._lines[first - 1 : last])
        gone = Place(self._module.path, first, 1, last + 1, 1)
        line = target.end_lineno or target.lineno
        column = len(self._lines[line - 1].encode()) + 1
        behind = Place(self._module.path, line, column, line, column)
        return Edit(gone, ""), Edit(behind, f"{self._end}{text}")
