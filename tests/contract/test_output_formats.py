"""What every output format of ``halfstep check`` keeps to; a new file is tested by being there."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from halfstep.check.linter import check_source
from halfstep.cli.check_options import parser
from halfstep.records.errors import BadValueError
from halfstep.records.finding import Finding
from halfstep.records.source_finding import SourceFinding
from halfstep.report.findings import formats, registry
from halfstep.report.findings.checked import Checked
from halfstep.rules.registry import load, select
from halfstep.rules.text import rule_text

FORMATS = [registry.load(name) for name in registry.names()]
BAD = load("HS101").bad
FOUND = check_source("src/train.py", BAD.encode(), select(["HS101"])).found
ODD = Finding("HS110", "early", "warning", 'a "b"/ü,:.py', 7, 6, "1 % <ä>\nor \\ more.", "move it.")
IN_CELL = Finding("HS303", "old", "note", "a.ipynb", 2, 1, "old.", "new.", cell=3)


def checked(found: Sequence[SourceFinding], statistics: bool = False) -> Checked:
    return Checked(
        found,
        num_files=2,
        problems=[("broken.py", "line 1: it is no Python")],
        trains=True,
        checklist=lambda: [("scale watched", "ok")],
        rules=lambda: [rule_text(load("HS101"))],
        version="1.2.3",
        statistics=statistics,
    )


def rendered(form: registry.Format, *found: SourceFinding, statistics: bool = False) -> str:
    return "\n".join(form.render(checked(found, statistics)))


def test_files_of_the_folder_are_the_choices_of_the_option() -> None:
    (folder,) = formats.__path__
    files = {path.stem for path in Path(folder).glob("*.py")} - {"__init__"}
    (option,) = (a for a in parser()._actions if "--format" in a.option_strings)
    assert set(option.choices or ()) == files
    assert option.default == next(iter(option.choices or ())) == "text"


def test_unknown_format_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadValueError, match="there is no format 'xml'; there are text, github"):
        registry.load("xml")


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_first_line_of_what_a_format_says_of_itself_is_a_sentence(form: registry.Format) -> None:
    first = form.text.splitlines()[0]
    assert re.fullmatch(r"[A-Z].*\.", first)
    assert len(first) <= 100


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_finding_has_its_place_code_message_and_remedy(form: registry.Format) -> None:
    (source,) = FOUND
    finding, text = source.finding, rendered(form, *FOUND)
    for part in (finding.path, str(finding.line), finding.code, finding.message, finding.remedy):
        assert part in text


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_finding_of_a_notebook_has_its_cell(form: registry.Format) -> None:
    text = rendered(form, SourceFinding(IN_CELL, 2, 5, "old()"))
    assert re.search(r"\bcell\W+3\b", text, re.IGNORECASE)


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
@pytest.mark.parametrize("statistics", [False, True], ids=["plain", "statistics"])
@pytest.mark.parametrize("num_found", [0, 1, 2])
def test_document_is_whole_whatever_was_found(
    form: registry.Format, statistics: bool, num_found: int
) -> None:
    """A format that is JSON with one finding is JSON with none, and with odd texts in it."""
    found = [SourceFinding(ODD, 8, 2, "\t(x"), *FOUND][:num_found]
    text = rendered(form, *found, statistics=statistics)
    if rendered(form, *FOUND)[0] in "[{":
        json.loads(text)
    assert "\x1b" not in text


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_same_check_is_written_the_same(form: registry.Format) -> None:
    assert rendered(form, *FOUND) == rendered(form, *FOUND)
