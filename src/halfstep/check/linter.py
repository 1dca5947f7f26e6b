"""Files -> findings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from halfstep.check.documents.files import Unreadable, read_bytes, source_files
from halfstep.check.output.reports import FileReport, Report
from halfstep.check.settings import Settings
from halfstep.check.source.leads import GATE, Leads
from halfstep.rules.registry import names

if TYPE_CHECKING:
    from halfstep.check.source.project import Project
    from halfstep.records.finding import Finding
    from halfstep.rules.rule import Rule

# What else speaks of low precision; the words of the rules over source text decide further.
_LOW = r"|float16|\.half\(|cuda\.amp|cpu\.amp|custom_[fb]wd"
_GATE = re.compile((GATE.pattern + _LOW + r"|halfstep:\s*ignore").encode())


def check_paths(
    paths: Iterable[str],
    rules: Sequence[type[Rule]],
    settings: Settings | None = None,
    jobs: int | None = None,
) -> Report:
    """Check files and folders.

    Args:
        paths: Of both.
        rules: From the registry.
        settings: Of the project.
        jobs: Processes at most; ``None`` for as many as there are cores.
    """
    settings, report, leads = settings or Settings(), Report(), Leads(_GATE)
    waiting: list[tuple[str, bool]] = []
    size = 0
    for path, named in source_files(paths, settings.include, settings.excludes):
        report.files.append(path)
        try:
            data = read_bytes(path)
        except Unreadable as problem:
            report.problems.append((path, str(problem), named))
            continue
        if _GATE.search(data) or leads.leads(path, data):  # the others are not even parsed
            waiting.append((path, named))
            size += len(data)
        elif named:
            from halfstep.check.documents.syntax import syntax_problems

            report.problems += [(path, text, True) for text in syntax_problems(path, data)]
    if waiting:
        from halfstep.check.spread import spread

        parts = spread([path for path, _ in waiting], size, rules, jobs)
        whole = [(path, named, part) for (path, named), part in zip(waiting, parts, strict=True)]
        report.take(whole, {rule.code for rule in rules}, {*names()}, settings)
    return report


def check_source(
    path: str, data: bytes, rules: Sequence[type[Rule]], settings: Settings | None = None
) -> Report:
    """Check the content of one file that need not exist.

    Args:
        path: What findings show; its ending says what it is.
        data: The content.
        rules: From the registry.
        settings: Of the project.
    """
    from halfstep.check.inspect import inspect_data

    report = Report()
    report.files.append(path)
    part = inspect_data(path, data, rules) if _GATE.search(data) else FileReport()
    codes = {rule.code for rule in rules}
    report.take([(path, True, part)], codes, {*names()}, settings or Settings())
    return report


def check_text(
    path: str, text: str, rules: Sequence[type[Rule]], project: Project | None = None
) -> list[Finding]:
    """Check one source text.

    Args:
        path: What findings show, and where its imports are looked for.
        text: The source.
        rules: From the registry.
        project: Files read so far.

    Raises:
        Unreadable: It is not Python.
    """
    from halfstep.check.documents.document import Piece
    from halfstep.check.inspect import inspect_piece

    report, part = Report(), FileReport()
    inspect_piece(path, Piece(text), rules, part, project)
    report.take([(path, True, part)], {rule.code for rule in rules}, {*names()}, Settings())
    return report.findings
