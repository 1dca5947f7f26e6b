"""Text for people: each finding with its lines and the remedy, the checklist, a count.

Colours come in a terminal, unless `NO_COLOR` is set.
"""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.report.findings.checked import Checked


def render(checked: Checked) -> Iterator[str]:
    """Blocks, what `--statistics` asks for, the checklist where something trains, and a count."""
    if checked.found:
        from halfstep.report.findings.excerpts import FindingsText

        text = FindingsText(checked.colours)
        yield from map(text.block, checked.found)
    if checked.statistics:
        from halfstep.report.findings.excerpts import statistics_lines

        yield from statistics_lines(source.finding for source in checked.found)
    if checked.trains:
        yield from (f"  {line:<42} {answer}" for line, answer in checked.checklist())
    yield _last_line(checked)


def _last_line(checked: Checked) -> str:
    if not checked.found:
        return f"no findings in {checked.num_files} file{'s' if checked.num_files != 1 else ''}"
    from halfstep.report.findings.excerpts import count_line

    line = count_line([source.finding for source in checked.found], checked.num_files)
    ways = [source.applicability for source in checked.found if source.repair]
    options = {"--fix": ways.count("safe"), "--unsafe-fixes": ways.count("unsafe")}
    parts = [f"{n} can be put right with {option}" for option, n in options.items() if n]
    return "; ".join([line, *parts])
