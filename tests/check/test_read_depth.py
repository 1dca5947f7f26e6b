"""How deep the reader sees: wrappers, helpers, containers and files of a project, both ways."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from projects import PROJECTS
from projects_of_containers import CONTAINERS

from halfstep.check.linter import check_paths
from halfstep.rules import registry

RULES = registry.select(["HS1"])

ALL = {**PROJECTS, **CONTAINERS}


def written(text: str, wrong: bool) -> str:
    marker = "# +" if wrong else "# -"
    kept = [line for line in text.splitlines() if marker not in line]
    return "\n".join(kept) + "\n"


def findings(folder: Path, files: dict[str, str]) -> set[tuple[str, str, int]]:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    found = check_paths(["main.py"], RULES).findings
    return {(f.path, f.code, f.line) for f in found if f.severity != "note"}


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", ALL)
def test_mistake_of_a_project_is_found_at_its_line(tmp_path: Path, name: str) -> None:
    files = {path: written(text, wrong=True) for path, text in ALL[name].items()}
    expected = {
        (path, code, number)
        for path, text in files.items()
        for number, line in enumerate(text.splitlines(), 1)
        for code in re.findall(r"<- (HS\d+)$", line)
    }
    assert expected
    assert findings(tmp_path, files) == expected


@pytest.mark.parametrize("name", ALL)
def test_project_without_the_mistake_gives_no_finding(tmp_path: Path, name: str) -> None:
    files = {path: written(text, wrong=False) for path, text in ALL[name].items()}
    assert findings(tmp_path, files) == set()
