"""One file -> what the rules say about it, with places and source as a reader sees them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING

from halfstep.check.documents.document import Piece, open_document
from halfstep.check.documents.files import Unreadable, read_bytes
from halfstep.check.documents.syntax import as_unreadable
from halfstep.check.output.checklist import evidence
from halfstep.check.output.raw import Raw
from halfstep.check.output.reports import FileReport
from halfstep.check.output.view import View
from halfstep.check.source.leads import GATE
from halfstep.check.source.module import Module
from halfstep.check.source.project import Project
from halfstep.rules.judge import finding_of, hits_of
from halfstep.rules.rule import Edit, Hit, OrderRule, Rule, SourceRule

if TYPE_CHECKING:
    from halfstep.check.interpreter.read import Reading


def inspect_file(path: str, rules: Sequence[type[Rule]], project: Project) -> FileReport:
    """Check a file of any kind; what goes wrong is in the report."""
    try:
        return inspect_data(path, read_bytes(path), rules, project)
    except Unreadable as problem:
        report = FileReport()
        report.problems.append(str(problem))
        return report


def inspect_data(
    path: str, data: bytes, rules: Sequence[type[Rule]], project: Project | None = None
) -> FileReport:
    """Check the content of a file of any kind; what goes wrong is in the report."""
    report = FileReport()
    try:
        document = open_document(path, data)
        report.problems += document.problems
        for piece in document.pieces:
            inspect_piece(path, piece, rules, report, project)
    except Unreadable as problem:
        report.problems.append(str(problem))
    except Exception as error:  # the other files are worth checking all the same
        report.broken = True
        what = f"{type(error).__name__}: {error}"
        report.problems.append(f"halfstep failed here ({what}); please report it")
    return report


def inspect_piece(
    path: str,
    piece: Piece,
    rules: Sequence[type[Rule]],
    report: FileReport,
    project: Project | None = None,
) -> None:
    """Check one text and add what is found to `report`.

    Raises:
        Unreadable: It is not Python.
    """
    project = project or Project()
    leads = project.leads(path, piece.text)
    if not leads and not _is_concerned(piece.text, rules):
        return
    with as_unreadable(piece):
        module = Module(path, piece.text)
        project.add(module)
        raws = list(raw_findings(module, project, rules, leads))
        view = View(module, piece, project)
        report.seen |= evidence(piece.text)
        report.comments += view.comments()
        for raw in raws:
            comments = view.silencing(raw.finding)
            report.used |= comments
            if not comments:
                report.found.append(view.source_finding(raw))


def _is_concerned(text: str, rules: Sequence[type[Rule]]) -> bool:
    """Whether `text` is worth parsing; a look at its words, which is a hundred times faster."""
    if GATE.search(text):
        return True
    return any(issubclass(rule, SourceRule) and rule.concerns(text) for rule in rules)


def raw_findings(
    module: Module, project: Project, rules: Sequence[type[Rule]], leads: bool = False
) -> Iterator[Raw]:
    """What the rules say about a file, each finding once.

    Args:
        module: The file.
        project: The files that it imports.
        rules: From the registry.
        leads: Whether mixed precision is in what it imports, and not in the file itself.
    """
    linted = [rule for rule in rules if "L" in rule.readers]
    over_text = [r for r in linted if issubclass(r, SourceRule) and r.concerns(module.text)]
    over_events = [r for r in linted if issubclass(r, OrderRule)]
    worst: dict[tuple[str, str, int], Raw] = {}
    concerned = leads or bool(GATE.search(module.text))
    over_events = over_events if concerned else []
    for raw in (*_of_source(module, over_text), *_of_paths(module, project, over_events)):
        key = raw.finding.code, raw.finding.path, raw.finding.line
        if key not in worst or _rank(raw) < _rank(worst[key]):
            worst[key] = raw
    beside = {(path, line) for code, path, line in worst if code == "HS134"}
    for (code, path, line), raw in worst.items():
        if code == "HS134" or (path, line) not in beside:  # the line goes, whatever else it does
            yield raw


def _rank(raw: Raw) -> int:
    return ("error", "warning", "note").index(raw.finding.severity)


def _of_source(module: Module, rules: list[type[SourceRule]]) -> Iterator[Raw]:
    if not rules:
        return
    from halfstep.check.source.facts import Facts

    facts = Facts(module)
    for rule in rules:
        for hit in rule().check(facts):
            end = hit.where.end_line, hit.where.end_column
            yield Raw(finding_of(rule, hit), end, hit.edits, rule.fixes if hit.edits else None)


def _of_paths(module: Module, project: Project, rules: list[type[OrderRule]]) -> Iterator[Raw]:
    if not rules:
        return
    from halfstep.check.interpreter.read import read  # the reader is half of the package

    seen: set[object] = set()
    waiting: list[tuple[type[Rule], Hit]] = []  # they count if no path refutes them
    refuted: set[Hashable] = set()
    for readings in read(module, project):
        for rule, hit in _hits(readings, rules, refuted):
            key = rule.code, hit.severity or rule.severity, hit.where.path, hit.where.line
            if hit.unless is not None:
                waiting.append((rule, hit))
            elif key not in seen:  # most paths show the same
                seen.add(key)
                yield _raw(rule, hit, module)
    for rule, hit in waiting:
        if hit.unless not in refuted:
            yield _raw(rule, hit, module)


def _hits(
    readings: list[Reading], rules: list[type[OrderRule]], refuted: set[Hashable]
) -> Iterator[tuple[type[Rule], Hit]]:
    """The hits of all paths of one entry; an error without a witness is a note."""
    from halfstep.check.interpreter.certainty import is_certain

    found: dict[object, tuple[type[Rule], Hit, set[int]]] = {}
    for number, reading in enumerate(readings):
        for rule, hit in hits_of(reading.events, rules, refuted, reading.is_cut):
            severity = hit.severity or rule.severity
            key = rule.code, severity, hit.where.path, hit.where.line, hit.unless
            found.setdefault(key, (rule, hit, set()))[2].add(number)
    for rule, hit, where in found.values():
        if hit.avoidable and not _is_avoided(hit, readings):
            continue
        if (hit.severity or rule.severity) == "error" and len(where) < len(readings):
            witnesses = [a for number in where for a in readings[number].answers]
            others = [r for number, r in enumerate(readings) if number not in where]
            trained = [a for r in others if r.trains() for a in r.answers]  # the rest shows nothing
            if not is_certain(witnesses, trained):
                hit.severity = "note"
        yield rule, hit


def _is_avoided(hit: Hit, readings: list[Reading]) -> bool:
    """Whether a path that trains was followed that leads past the place of `hit`."""
    trained = (reading.events for reading in readings if reading.trains())
    return any(all(event.where != hit.where for event in events) for events in trained)


def _raw(rule: type[Rule], hit: Hit, module: Module) -> Raw:
    finding = finding_of(rule, hit)
    edits: tuple[Edit, ...] = ()
    if rule.fixes and finding.path == module.path:
        from halfstep.check.repair.repairs import repair  # most files need none

        edits = repair(finding, hit, module)
    end = hit.where.end_line, hit.where.end_column
    return Raw(finding, end, edits, rule.fixes if edits else None)
