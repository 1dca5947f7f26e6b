"""Where a finding stands, which other line it names, and that it speaks the program's own names.

``# <- HS112: words`` marks the line of a finding, whose message or remedy holds the words;
``# <= HS112`` marks a line that is named beside it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from halfstep.check.linter import check_paths
from halfstep.records.finding import Finding
from halfstep.rules import registry
from lint_kinds import executed, gaps_beside, programs

RULES = registry.select()
CASES = programs.named(programs.kinds_of("places"))
MARK = re.compile(r"# (<-|<=) (HS\d+)(?:: (.+))?$")
# What names have that no program has: of an object (`scaler@11`), of a scope, of a place.
INTERNAL = re.compile(r"\w@\d|<locals>|<listcomp>|<module>|0x[0-9a-f]{6}")


def marks(text: str, kind: str) -> list[tuple[int, str, str]]:
    found = ((n, MARK.search(line)) for n, line in enumerate(text.splitlines(), 1))
    return [(n, m.group(2), m.group(3) or "") for n, m in found if m and m.group(1) == kind]


def findings(folder: Path, text: str) -> list[Finding]:
    for name, body in executed.files_of(text):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(body)
    return [f for f in check_paths([str(folder)], RULES).findings if f.severity != "note"]


def internal_names(folder: Path, text: str) -> list[str]:
    found = findings(folder, text)
    said = [words for f in found for words in (f.message, f.remedy)]
    said += [other.message for f in found for other in f.related]
    return [words for words in said if INTERNAL.search(words)]


@pytest.mark.parametrize("name", programs.with_gaps(CASES, gaps_beside.MISPLACED))
def test_finding_stands_on_the_line_to_change(name: str, tmp_path: Path) -> None:
    found = [(f.line, f.code) for f in findings(tmp_path, CASES[name])]
    assert sorted(found) == [(line, code) for line, code, _ in marks(CASES[name], "<-")]


@pytest.mark.parametrize("name", programs.with_gaps(CASES, gaps_beside.UNTOLD))
def test_finding_names_the_other_line_and_the_remedy_that_fits(name: str, tmp_path: Path) -> None:
    found = findings(tmp_path, CASES[name])
    beside = {(other.line, f.code) for f in found for other in f.related}
    assert beside >= {(line, code) for line, code, _ in marks(CASES[name], "<=")}
    for _, code, words in marks(CASES[name], "<-"):
        assert any(words in f"{f.message} {f.remedy}" for f in found if f.code == code)


@pytest.mark.parametrize("name", programs.with_gaps(CASES, gaps_beside.UNNAMED))
def test_finding_speaks_the_names_of_the_program(name: str, tmp_path: Path) -> None:
    assert internal_names(tmp_path, CASES[name]) == []


def test_finding_of_any_kind_speaks_the_names_of_the_program(tmp_path: Path) -> None:
    texts = [text for text in programs.CASES.values() if not text.startswith("# file")]
    assert [said for text in texts for said in internal_names(tmp_path, text)] == []


@pytest.mark.parametrize("name", [name for name, text in CASES.items() if "# <- HS" not in text])
def test_program_that_closes_its_windows_trains_right(name: str, tmp_path: Path) -> None:
    assert executed.faults(CASES[name], tmp_path) == []
