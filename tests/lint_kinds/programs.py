"""The programs of all kinds, out of ``programs/*.txt`` and of `asked_twice`."""

from __future__ import annotations

from pathlib import Path

from lint_kinds import asked_twice

FOLDER = Path(__file__).parent / "programs"


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


KINDS = dict(asked_twice.KINDS)
for path in sorted(FOLDER.glob("*.txt")):
    KINDS.update(read(path))
CASES = {
    f"{kind} / {name}": text for kind, members in KINDS.items() for name, text in members.items()
}
