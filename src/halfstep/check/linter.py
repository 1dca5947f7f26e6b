"""Files -> findings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from halfstep.check.facts import Facts
from halfstep.check.files import Unreadable, decode, python_files, read_bytes
from halfstep.check.module import GATE, Module
from halfstep.check.project import Project
from halfstep.rules.judge import finding_of, judge
from halfstep.rules.rule import OrderRule, Rule, SourceRule

if TYPE_CHECKING:
    from halfstep.records.finding import Finding

# What else speaks of low precision; the words of the rules over source text decide further.
_LOW = r"|float16|\.half\(|cuda\.amp|cpu\.amp|custom_[fb]wd"
_GATE = re.compile((GATE.pattern + _LOW).encode())
_IGNORE = re.compile(r"#\s*halfstep:\s*ignore(?:\[([\w\s,]*)\])?")


class Report:
    """What a check found.

    Attributes:
        findings: By path, line and code; none that a comment silences.
        num_files: Files that were looked at.
        problems: Files that could not be checked, each with the reason and whether it was named.
    """

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.num_files = 0
        self.problems: list[tuple[str, str, bool]] = []


def check_paths(paths: Iterable[str], rules: list[type[Rule]]) -> Report:
    """Check files and folders.

    Args:
        paths: Of both.
        rules: From the registry.
    """
    report, project = Report(), Project()
    found: dict[tuple[str, str, int], Finding] = {}
    for path, named in python_files(paths):
        report.num_files += 1
        try:
            for finding in _check_file(path, rules, project):
                found.setdefault((finding.code, finding.path, finding.line), finding)
        except Unreadable as problem:
            report.problems.append((path, str(problem), named))
    report.findings = sorted(found.values(), key=lambda f: (f.path, f.line, f.column, f.code))
    return report


def _check_file(path: str, rules: list[type[Rule]], project: Project) -> list[Finding]:
    data = read_bytes(path)
    if not _GATE.search(data):
        return []
    return check_text(path, decode(data), rules, project)


def check_text(
    path: str, text: str, rules: list[type[Rule]], project: Project | None = None
) -> list[Finding]:
    """Check one source text.

    Args:
        path: What findings show, and where its imports are looked for.
        text: The source.
        rules: From the registry.
        project: Files read so far.
    """
    project = project or Project()
    linted = [rule for rule in rules if "L" in rule.readers]
    over_text = [rule for rule in linted if issubclass(rule, SourceRule) and rule.concerns(text)]
    if not over_text and not GATE.search(text):
        return []
    try:
        module = Module(path, text)
        project.add(module)
        found: dict[tuple[str, str, int], Finding] = {}
        for finding in chain(_of_source(module, over_text), _of_paths(module, project, linted)):
            found.setdefault((finding.code, finding.path, finding.line), finding)
    except SyntaxError as error:
        raise Unreadable(f"line {error.lineno}: {error.msg}") from None
    except (RecursionError, MemoryError):
        raise Unreadable("nested too deeply") from None
    except ValueError as error:
        raise Unreadable(str(error)) from None
    return [f for f in found.values() if not _is_ignored(f, path, text, project)]


def _of_source(module: Module, rules: list[type[SourceRule]]) -> Iterator[Finding]:
    facts = Facts(module) if rules else None
    for rule in rules:
        assert facts is not None
        for hit in rule().check(facts):
            yield finding_of(rule, hit)


def _of_paths(module: Module, project: Project, rules: list[type[Rule]]) -> Iterator[Finding]:
    from halfstep.check.read import read  # a file without a training step needs no reader

    over_events = [rule for rule in rules if issubclass(rule, OrderRule)]
    if over_events and GATE.search(module.text):
        for events in read(module, project):
            yield from judge(events, over_events)


def _is_ignored(finding: Finding, path: str, text: str, project: Project) -> bool:
    lines = (text if finding.path == path else project.text(finding.path)).splitlines()
    comment = _IGNORE.search(lines[finding.line - 1]) if finding.line <= len(lines) else None
    if comment is None:
        return False
    codes = comment.group(1)
    return codes is None or finding.code in re.split(r"[\s,]+", codes)
