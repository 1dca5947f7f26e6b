"""The programs of all kinds, out of text files and of `asked_twice`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from lint_kinds import asked_twice

FOLDER = Path(__file__).parent


def read(path: Path) -> dict[str, dict[str, str]]:
    """Kind to member to program: ``kind: name`` begins a kind, ``=== name`` a member."""
    kinds: dict[str, dict[str, str]] = {}
    kind = member = ""
    for line in path.read_text().splitlines(keepends=True):
        if line.startswith("kind: "):
            kind, member = line[6:].strip(), ""
            kinds[kind] = {}
        elif line.startswith("=== "):
            member = line[4:].strip()
            kinds[kind][member] = ""
        else:
            kinds[kind][member] += line
    return kinds


def kinds_of(folder: str) -> dict[str, dict[str, str]]:
    """Kind to member to program, of all files in a folder."""
    kinds: dict[str, dict[str, str]] = {}
    for path in sorted((FOLDER / folder).glob("*.txt")):
        kinds |= read(path)
    return kinds


def named(kinds: dict[str, dict[str, str]]) -> dict[str, str]:
    """Programs by ``kind / member``."""
    return {f"{kind} / {name}": text for kind, all_ in kinds.items() for name, text in all_.items()}


def with_gaps(names: Iterable[str], gaps: dict[str, list[str]]) -> list[Any]:
    """Parameters of a test, those of `gaps` expected to fail."""
    known = {f"{kind} / {member}" for kind, members in gaps.items() for member in members}
    mark = pytest.mark.xfail(strict=True, reason="not yet right")
    return [pytest.param(name, marks=[mark] if name in known else []) for name in names]


KINDS = asked_twice.KINDS | kinds_of("programs")
CASES = named(KINDS)
