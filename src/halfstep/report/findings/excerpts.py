"""Findings in source code as text, with the lines they speak of."""

from __future__ import annotations

from collections.abc import Iterable

from halfstep.records.finding import Finding
from halfstep.records.source_finding import SourceFinding

_COLOURS = {"error": "1;31", "warning": "1;33", "note": "1;36", "dim": "2", "bold": "1"}


class FindingsText:
    """Renders findings.

    Args:
        colours: For a terminal.
    """

    def __init__(self, colours: bool = False) -> None:
        self._colours = colours

    def block(self, source: SourceFinding) -> str:
        """One finding: what and where, its line, the other lines involved, what to do.

        Example:
            >>> f = Finding("HS110", "n", "warning", "a.py", 3, 5, "too early.", "move it.")
            >>> print(FindingsText().block(SourceFinding(f, 3, 8, "    s.step()")))
            a.py:3:5: HS110 warning: too early.
                3 |     s.step()
                  |     ^^^
                  = move it.
        """
        finding = source.finding
        code = self._paint(f"{finding.code} {finding.severity}", finding.severity)
        lines = [f"{self._paint(_place(finding), 'bold')}: {code}: {finding.message}"]
        numbers = [finding.line, *(r.line for r in finding.related)]
        width = max(4, *(len(str(n)) + 1 for n in numbers))
        lines += self._excerpts(source, width)
        bar = self._paint(" " * (width + 1) + " =", "dim")
        return "\n".join([*lines, f"{bar} {finding.remedy}"])

    def _excerpts(self, source: SourceFinding, width: int) -> list[str]:
        """The lines in the order of the file; those of other files at the end."""
        finding = source.finding
        parts = [((finding.cell or 0, finding.line, 0), self._own(source, width))]
        elsewhere = []
        for related, text in zip(finding.related, source.related_source, strict=False):
            mark = self._paint(f"- {related.message}", "dim")
            indent = " " * (len(text) - len(text.lstrip()))
            excerpt = [self._line(related.line, text, width), self._below(indent + mark, width)]
            if related.path == finding.path and related.cell == finding.cell:
                parts.append(((finding.cell or 0, related.line, 1), excerpt))
            else:
                cell = f"cell {related.cell}:" if related.cell else ""
                elsewhere.append(f"{' ' * width}> {related.path}:{cell}{related.line}")
                elsewhere += excerpt
        return [*(line for _, part in sorted(parts) for line in part), *elsewhere]

    def _own(self, source: SourceFinding, width: int) -> list[str]:
        finding, text = source.finding, source.source
        if not text.strip():
            return []
        end = source.end_column if source.end_line == finding.line else len(text) + 1
        length = max(1, min(end, len(text) + 1) - finding.column)
        # a tab in front of the mark keeps it under what it marks
        before = "".join(c if c == "\t" else " " for c in text[: finding.column - 1])
        mark = self._paint("^" * length, finding.severity)
        return [self._line(finding.line, text, width), self._below(before + mark, width)]

    def _line(self, number: int, text: str, width: int) -> str:
        return f"{self._paint(f'{number:>{width + 1}} |', 'dim')} {text}".rstrip()

    def _below(self, text: str, width: int) -> str:
        return f"{self._paint(' ' * (width + 1) + ' |', 'dim')} {text}"

    def _paint(self, text: str, colour: str) -> str:
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if self._colours else text


def _place(finding: Finding) -> str:
    cell = f"cell {finding.cell}:" if finding.cell else ""
    return f"{finding.path}:{cell}{finding.line}:{finding.column}"


def count_line(findings: Iterable[Finding], num_files: int) -> str:
    """How many of each severity, as ``"1 error, 2 warnings in 3 files"``."""
    severities = [finding.severity for finding in findings]
    counts = {s: severities.count(s) for s in ("error", "warning", "note")}
    parts = [f"{n} {s}{'s' if n != 1 else ''}" for s, n in counts.items() if n]
    files = f"{num_files} file{'s' if num_files != 1 else ''}"
    return f"{', '.join(parts) or 'no findings'} in {files}"


def statistics_lines(findings: Iterable[Finding]) -> list[str]:
    """How many of each rule, the most frequent first."""
    counts: dict[tuple[str, str, str], int] = {}
    for finding in findings:
        key = finding.code, finding.severity, finding.name
        counts[key] = counts.get(key, 0) + 1
    rows = sorted(counts.items(), key=lambda row: (-row[1], row[0]))
    return [f"{n:>5}  {code}  {severity:<7}  {name}" for (code, severity, name), n in rows]
