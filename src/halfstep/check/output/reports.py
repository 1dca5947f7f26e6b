"""What checks give: one file's part, which travels between processes, and the whole."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from halfstep.check.settings import Settings
    from halfstep.records.finding import Finding
    from halfstep.records.source_finding import SourceFinding

UNUSED_IGNORE = "HS304"


class Comment(NamedTuple):
    """An ignore comment.

    Attributes:
        key: File and line, the same from whichever file it is seen.
        codes: What it names; empty where it silences all.
        faulty: Whether it is written wrong.
        finding: What is said if it silences nothing or is faulty.
    """

    key: tuple[str, int]
    codes: tuple[str, ...]
    faulty: bool
    finding: SourceFinding


class FileReport:
    """What one file gave.

    Attributes:
        found: Findings that no comment silences, some of them in files that it imports.
        comments: Its ignore comments.
        used: Keys of the comments that silenced something, there and in files that it imports.
        seen: Lines of the checklist about which the file says anything.
        problems: Why it, or a part of it, could not be checked.
        broken: Whether halfstep itself is to blame for that.
    """

    def __init__(self) -> None:
        self.found: list[SourceFinding] = []
        self.comments: list[Comment] = []
        self.used: set[tuple[str, int]] = set()
        self.seen: set[str] = set()
        self.problems: list[str] = []
        self.broken = False

    def unused(self, used: set[tuple[str, int]], run: set[str], known: set[str]) -> list[Any]:
        """Findings for the comments that silence nothing although their rules ran.

        Args:
            used: Keys of those that do, over all files.
            run: Codes of the rules that ran.
            known: Codes of all rules.
        """
        if UNUSED_IGNORE not in run:
            return []
        return [
            comment.finding
            for comment in self.comments
            if comment.faulty or (comment.key not in used and _concern(comment.codes, known) <= run)
        ]


def _concern(codes: tuple[str, ...], known: set[str]) -> set[str]:
    return {code for code in known if not codes or code.startswith(codes)}


class Report:
    """What a check found.

    Attributes:
        found: Findings by path, line and code, with the source around them.
        files: Files that were looked at.
        problems: Files that could not be checked, each with the reason and whether that is an
            error: a file that was named, or a mistake of halfstep's own.
        seen: Lines of the checklist about which the files say anything.
    """

    def __init__(self) -> None:
        self.found: list[SourceFinding] = []
        self.files: list[str] = []
        self.problems: list[tuple[str, str, bool]] = []
        self.seen: set[str] = set()

    @property
    def num_files(self) -> int:
        """How many files were checked."""
        return len({*self.files} - {path for path, _, _ in self.problems})

    @property
    def findings(self) -> list[Finding]:
        """The records alone."""
        return [source.finding for source in self.found]

    def take(
        self,
        parts: Iterable[tuple[str, bool, FileReport]],
        run: set[str],
        known: set[str],
        settings: Settings,
    ) -> None:
        """Take over what files gave: path, whether it was named, report."""
        parts = list(parts)
        checked = {path for path, _, _ in parts}
        used = {key for _, _, part in parts for key in part.used}
        every: dict[Any, SourceFinding] = {}
        for path, named, part in parts:
            self.problems += [(path, text, named or part.broken) for text in part.problems]
            self.seen |= part.seen
            for source in [*part.found, *part.unused(used, run, known)]:
                finding = source.finding
                shown = finding.path in checked or not settings.excludes(finding.path)
                if shown and not settings.silences(finding.code, finding.path):
                    every.setdefault((finding.code, *_place(source)[:3]), source)
        self.problems.sort()
        self.found = sorted(every.values(), key=_place)


def _place(source: SourceFinding) -> tuple[str, int, int, int, str]:
    finding = source.finding
    return finding.path, finding.cell or 0, finding.line, finding.column, finding.code
