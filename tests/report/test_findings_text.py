"""Findings as text and as annotations."""

from __future__ import annotations

import re

from halfstep.records.finding import Finding, Related
from halfstep.records.source_finding import SourceFinding
from halfstep.report.findings.excerpts import (
    FindingsText,
    count_line,
    statistics_lines,
)
from halfstep.report.findings.formats.github import annotation

FINDING = Finding("HS110", "early", "warning", "a.py", 7, 6, "too early.", "move it.")
SOURCE = SourceFinding(FINDING, 7, 11, "\tif x: y()")


def test_mark_stands_under_the_text_even_behind_a_tab() -> None:
    assert FindingsText().block(SOURCE) == (
        "a.py:7:6: HS110 warning: too early.\n"
        "    7 | \tif x: y()\n"
        "      | \t    ^^^^^\n"
        "      = move it."
    )


def test_call_over_several_lines_is_marked_to_the_end_of_the_first() -> None:
    source = SourceFinding(FINDING, 9, 2, "    x = call(")
    assert "      |      ^^^^^^^^\n" in FindingsText().block(source)


def test_lines_come_in_the_order_of_the_file_and_other_files_last() -> None:
    related = (
        Related("b.py", 3, "made here"),
        Related("a.py", 1204, "steps here"),
        Related("a.py", 2, "scaled here"),
    )
    finding = Finding(**{**_fields(FINDING), "related": related})
    lines = ("  made()", "step()", "    scale()")
    text = FindingsText().block(SourceFinding(finding, 7, 11, "\tif x: y()", lines))
    assert text.splitlines()[1:-1] == [
        "     2 |     scale()",
        "       |     - scaled here",
        "     7 | \tif x: y()",
        "       | \t    ^^^^^",
        "  1204 | step()",
        "       | - steps here",
        "     > b.py:3",
        "     3 |   made()",
        "       |   - made here",
    ]


def _fields(finding: Finding) -> dict[str, object]:
    return finding._asdict()


def test_colours_change_nothing_but_colours() -> None:
    coloured = FindingsText(colours=True).block(SOURCE)
    assert "\x1b[1;33mHS110 warning\x1b[0m" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == FindingsText().block(SOURCE)


def test_source_that_is_not_known_has_no_excerpt() -> None:
    assert FindingsText().block(SourceFinding(FINDING, 7, 8)).count("\n") == 1


def test_counts_name_what_there_is() -> None:
    error = Finding("HS101", "clip", "error", "a.py", 1, 1, "m", "r")
    assert count_line([], 1) == "no findings in 1 file"
    assert count_line([FINDING, error, FINDING], 3) == "1 error, 2 warnings in 3 files"
    assert statistics_lines([error, FINDING, FINDING]) == [
        "    2  HS110  warning  early",
        "    1  HS101  error    clip",
    ]


def test_annotation_is_escaped_as_workflow_commands_are() -> None:
    fields = {"path": "a,b:c.py", "message": "100 %\nof it.", "severity": "note"}
    source = SourceFinding(Finding(**{**_fields(FINDING), **fields}), 7, 11)
    assert annotation(source) == (
        "::notice file=a%2Cb%3Ac.py,line=7,endLine=7,col=6,endColumn=11,title=HS110 early"
        "::100 %25%0Aof it. Remedy: move it."
    )


def test_annotation_over_several_lines_has_no_end_column() -> None:
    assert "line=7,endLine=9,col=6,title" in annotation(SourceFinding(FINDING, 9, 2))


def test_annotation_in_a_notebook_names_the_cell_instead_of_a_line() -> None:
    source = SourceFinding(Finding(**{**_fields(FINDING), "cell": 3}), 7, 11)
    assert annotation(source).startswith("::warning file=a.py,title=HS110 early::Cell 3, line 7: ")
