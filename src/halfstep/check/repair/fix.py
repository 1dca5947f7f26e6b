"""Repairs made in files: until nothing is left to repair, all of a file or nothing of it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from halfstep.check.documents.document import Piece, open_document
from halfstep.check.documents.files import read_bytes
from halfstep.check.inspect import raw_findings
from halfstep.check.output.view import View
from halfstep.check.repair.edits import apply
from halfstep.check.repair.importers import Importers
from halfstep.check.settings import Settings
from halfstep.check.source.module import Module
from halfstep.check.source.project import Project

if TYPE_CHECKING:
    from halfstep.check.output.raw import Raw
    from halfstep.check.output.reports import Report
    from halfstep.rules.rule import Rule

_ROUNDS = 20  # one repair can make room for the next; none needs more than a few


class Fixed:
    """What repairs made of a file.

    Attributes:
        old: Its bytes before.
        new: Its bytes now.
        counts: Code to the number of findings put right.
    """

    def __init__(self, data: bytes) -> None:
        self.old = data
        self.new = data
        self.counts: Counter[str] = Counter()

    def __str__(self) -> str:
        parts = (f"{n} x {code}" for code, n in sorted(self.counts.items()))
        return ", ".join(parts) or "nothing"


def fix_report(
    report: Report, rules: Sequence[type[Rule]], settings: Settings, unsafe: bool = False
) -> Iterator[tuple[str, Fixed]]:
    """Repair the files of a report that have something to repair; nothing is written.

    Args:
        report: From a check; files that it did not look at itself are left alone.
        rules: From the registry.
        settings: Of the project.
        unsafe: Make repairs too after which training does something else.
    """
    checked = set(report.files)
    paths = {source.finding.path for source in report.found if source.repair}
    importers = Importers(checked, paths & checked)
    for path in sorted(paths & checked):
        taken = importers.taken_from(path)
        fixed = fix_data(path, read_bytes(path), rules, settings, unsafe, taken)
        if fixed.new != fixed.old:
            yield path, fixed


def fix_data(
    path: str,
    data: bytes,
    rules: Sequence[type[Rule]],
    settings: Settings | None = None,
    unsafe: bool = False,
    taken: Collection[str] = (),
) -> Fixed:
    """Repair the content of a file; nothing is written.

    Args:
        path: What it is called; its ending says what it is.
        data: The content.
        rules: From the registry.
        settings: Of the project; what they silence is left alone.
        unsafe: Make repairs too after which training does something else.
        taken: Names that other files import from this one, whose imports stay as they are.

    Raises:
        Unreadable: The content is no Python.
    """
    fixed = Fixed(data)
    for _ in range(_ROUNDS):
        document = open_document(path, fixed.new)
        texts = []
        for piece in document.pieces:
            found = _found(path, piece, rules)
            able = _repairable(path, found, settings or Settings(), unsafe)
            wanted = [raw for raw in able if not _imports_anew(raw, taken)]
            text, made = apply(piece.text, [raw.edits for raw in wanted])
            if any(made) and _errors(_found(path, Piece(text), rules)) - _errors(found):
                text, made = piece.text, [False] * len(made)  # it would be wrong in another way
            done = (raw.finding.code for raw, is_made in zip(wanted, made, strict=True) if is_made)
            fixed.counts.update(done)
            texts.append(text)
        if texts == [piece.text for piece in document.pieces]:
            break
        fixed.new = document.rebuilt(texts)
    return fixed


class _Found(NamedTuple):
    raws: list[Raw]
    view: View | None


def _found(path: str, piece: Piece, rules: Sequence[type[Rule]]) -> _Found:
    module, project = _parsed(path, piece), Project()
    if module is None:
        return _Found([], None)
    project.add(module)
    return _Found(list(raw_findings(module, project, rules)), View(module, piece, project))


def _errors(found: _Found) -> Counter[str]:
    findings = (raw.finding for raw in found.raws)
    return Counter(finding.code for finding in findings if finding.severity == "error")


def _repairable(path: str, found: _Found, settings: Settings, unsafe: bool) -> Iterator[Raw]:
    for raw in found.raws:
        code = raw.finding.code
        allowed = raw.applicability == "safe" or (unsafe and raw.applicability == "unsafe")
        silenced = settings.silences(code, path) or (
            found.view and found.view.silencing(raw.finding)
        )
        if allowed and not silenced:
            yield raw


def _imports_anew(raw: Raw, names: Collection[str]) -> bool:
    """Whether a repair changes what an import of one of `names` stands for."""
    imports = (e.text for e in raw.edits if e.text.startswith(("from ", "import ")))
    return any(name in re.findall(r"\w+", text) for text in imports for name in names)


def _parsed(path: str, piece: Piece) -> Module | None:
    try:
        return Module(path, piece.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # the check says so


def write_whole(path: str, data: bytes) -> None:
    """Replace a file at once: whoever reads it sees the old content or the new one.

    Raises:
        OSError: The folder or the file cannot be written; the file is as it was.
    """
    path = os.path.realpath(path)  # a link stays a link
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".halfstep-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        shutil.copymode(path, temporary)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
