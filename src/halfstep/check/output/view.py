"""Places as a reader counts them: cells, lines and characters of the file on the disk."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from halfstep.check.documents.document import Piece, split_lines
from halfstep.check.output.ignores import Ignore, ignores
from halfstep.check.output.reports import UNUSED_IGNORE, Comment
from halfstep.check.source.module import Module
from halfstep.check.source.project import Project

if TYPE_CHECKING:
    from halfstep.check.output.raw import Raw
    from halfstep.records.finding import Finding
    from halfstep.records.source_finding import Replacement, SourceFinding
    from halfstep.rules.rule import Edit


class View:
    """One piece of a document and the files it imports.

    Args:
        module: The piece, parsed.
        piece: Where it stands in the document.
        project: The files that it imports.
    """

    def __init__(self, module: Module, piece: Piece, project: Project) -> None:
        self._module = module
        self._piece = piece
        self._project = project
        self._lines: dict[str, list[str]] = {}
        self._ignores: dict[str, list[Ignore]] = {}

    def source_finding(self, raw: Raw) -> SourceFinding:
        """`raw` with the source around it."""
        from halfstep.records.finding import Related  # most files need none
        from halfstep.records.source_finding import SourceFinding

        found = raw.finding
        end_line, end_column = self._spot(found.path, *raw.end)[1:]
        cell, line, column = self._spot(found.path, found.line, found.column)
        related = tuple(
            Related(r.path, spot[1], r.message, spot[0])
            for r in found.related
            for spot in [self._spot(r.path, r.line, 1)]
        )
        return SourceFinding(
            found._replace(line=line, column=column, related=related, cell=cell),
            end_line=end_line,
            end_column=end_column,
            source=self._line(found.path, found.line),
            related_source=tuple(self._line(r.path, r.line) for r in found.related),
            repair=tuple(map(self._replacement, raw.edits)),
            applicability=raw.applicability,
        )

    def comments(self) -> list[Comment]:
        """The ignore comments of the piece."""
        return [
            Comment(
                key=_key(self._module.path, ignore),
                codes=ignore.codes,
                faulty=bool(ignore.fault),
                finding=self._unused(ignore),
            )
            for ignore in self._ignores_of(self._module)
            if UNUSED_IGNORE not in ignore.codes
        ]

    def silencing(self, finding: Finding) -> set[tuple[str, int]]:
        """Keys of the comments that silence a finding, in whichever file it is."""
        home = self._home(finding.path)
        if home is None:
            return set()
        return {
            _key(finding.path, ignore)
            for ignore in self._ignores_of(home)
            if ignore.silences(finding.code, finding.line)
        }

    def _unused(self, ignore: Ignore) -> SourceFinding:
        from halfstep.check.output.raw import Raw
        from halfstep.rules.events import Place
        from halfstep.rules.judge import finding_of
        from halfstep.rules.registry import load
        from halfstep.rules.rule import Hit

        text = self._line(self._module.path, ignore.line)
        start = len(text[: ignore.column - 1].encode()) + 1
        end = start + len(ignore.text)
        place = Place(self._module.path, ignore.line, start, ignore.line, end)
        message = (
            f"this comment does not do what it says: {ignore.fault}." if ignore.fault else None
        )
        finding = finding_of(load(UNUSED_IGNORE), Hit(place, message=message))
        return self.source_finding(Raw(finding, (ignore.line, end)))

    def _replacement(self, edit: Edit) -> Replacement:
        from halfstep.records.source_finding import Replacement

        place = edit.place
        _, line, column = self._spot(place.path, place.line, place.column)
        _, end_line, end_column = self._spot(place.path, place.end_line, place.end_column)
        return Replacement(line, column, end_line, end_column, edit.text)

    def _spot(self, path: str, line: int, column: int) -> tuple[int | None, int, int]:
        """Cell, line, and column in characters."""
        text = self._line(path, line)
        if not text.isascii():
            column = len(text.encode()[: column - 1].decode(errors="ignore")) + 1
        if path != self._module.path:
            return None, line, column
        return *self._piece.spot(line), column + self._piece.indent

    def _line(self, path: str, line: int) -> str:
        if path not in self._lines:
            home = self._home(path)
            self._lines[path] = split_lines(home.text) if home else []
        lines = self._lines[path]
        return lines[line - 1] if line <= len(lines) else ""

    def _home(self, path: str) -> Module | None:
        return self._module if path == self._module.path else self._project.module(path)

    def _ignores_of(self, module: Module) -> list[Ignore]:
        if module.path not in self._ignores:
            self._ignores[module.path] = ignores(module.text, module.tree)
        return self._ignores[module.path]


def _key(path: str, ignore: Ignore) -> tuple[str, int]:
    return os.path.abspath(path), ignore.line
