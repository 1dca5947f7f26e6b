"""Programs that begin in a file without a word of mixed precision: what it imports has them.

A look at the text of import statements, which is far faster than parsing: most files of a folder
train nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

# A file without any of these words has nothing to say to any rule over events.
GATE = re.compile(r"autocast|GradScaler|\bhalfstep\b|unscale_|grad_scaler|scaler|amp\.scale")
_TRAINS = re.compile(rb"\btorch\b")
_STARTS = re.compile(rb"optim\b|optim\.|Optimizer\(|train|Trainer|\bfit\b", re.IGNORECASE)
# A notebook has each line in quotes, perhaps all of them in one line.
_FROM = re.compile(
    rb"(?:^|\")[ \t]*from[ \t]+(\.*[\w.]*)[ \t]+import[ \t]+(\(?[^#\n)]*)", re.MULTILINE
)
_IMPORT = re.compile(rb"(?:^|\")[ \t]*import[ \t]+([\w., \t]+)", re.MULTILINE)
_DEPTH = 3
_LARGE = 400_000  # bytes of a file that no program of people imports to train


class Leads:
    """Tells which files lead to mixed precision, each file read once.

    Args:
        words: What a file says that has to do with mixed precision.
    """

    def __init__(self, words: re.Pattern[bytes]) -> None:
        self._words = words
        self._texts: dict[str, bytes | None] = {}

    def leads(self, path: str, data: bytes) -> bool:
        """Whether a file trains and imports, at some depth, one with such words."""
        if not path.endswith((".py", ".ipynb")) or not _STARTS.search(data):
            return False
        return self._reaches(os.path.abspath(path), data, _DEPTH, set())

    def _reaches(self, path: str, data: bytes, depth: int, seen: set[str]) -> bool:
        for found in _imported(path, data):
            if found in seen:
                continue
            seen.add(found)
            text = self._read(found)
            if text is None:
                continue
            if self._words.search(text) and _TRAINS.search(text):
                return True
            if depth > 1 and self._reaches(found, text, depth - 1, seen):
                return True
        return False

    def _read(self, path: str) -> bytes | None:
        if path not in self._texts:
            self._texts[path] = None
            try:
                if os.path.isfile(path) and os.path.getsize(path) < _LARGE:
                    with open(path, "rb") as file:
                        self._texts[path] = file.read()
            except OSError:
                pass
        return self._texts[path]


def _imported(path: str, data: bytes) -> Iterator[str]:
    """Files that the imports of a file may mean, beside it and two folders up."""
    folder = os.path.dirname(path)
    for dotted, level, names in _statements(data):
        home = folder
        for _ in range(level - 1):
            home = os.path.dirname(home)
        up = os.path.dirname(home)
        for place in [home] if level else [home, up, os.path.dirname(up)]:
            base = os.path.join(place, *dotted.split(".")) if dotted else place
            yield f"{base}.py"
            yield os.path.join(base, "__init__.py")
            for name in names:
                yield os.path.join(base, f"{name}.py")


def _statements(data: bytes) -> Iterator[tuple[str, int, list[str]]]:
    """Module, level and names of each import."""
    for match in _FROM.finditer(data):
        whole = match.group(1).decode(errors="ignore")
        dotted = whole.lstrip(".")
        names = re.findall(r"\w+", match.group(2).decode(errors="ignore"))
        yield dotted, len(whole) - len(dotted), names[:20]
    for match in _IMPORT.finditer(data):
        for part in match.group(1).decode(errors="ignore").split(","):
            words = part.split()
            if words:
                yield words[0], 0, []
