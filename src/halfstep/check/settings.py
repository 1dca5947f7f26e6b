"""``[tool.halfstep]`` of the nearest ``pyproject.toml``."""

from __future__ import annotations

import os
from collections.abc import Iterable
from fnmatch import fnmatch
from typing import Any

from halfstep.check.documents.files import INCLUDED
from halfstep.records.errors import BadValueError

_LISTS = ("select", "ignore", "exclude", "include")
_KEYS = (*_LISTS, "per-file-ignores", "strict")


class Settings:
    """What the project says about the check.

    Attributes:
        root: Folder of the file; patterns are relative to it.
        select: Codes or their beginnings; empty for all.
        ignore: Codes or their beginnings.
        exclude: Patterns of paths that folders leave out.
        include: Patterns of file names that folders hold.
        per_file: Patterns and the codes that are silent there.
        strict: Whether notes are shown.
    """

    def __init__(self, root: str = ".", table: dict[str, Any] | None = None) -> None:
        table = table or {}
        self.root = os.path.abspath(root)
        self.select: tuple[str, ...] = _codes(table.get("select", ()))
        self.ignore: tuple[str, ...] = _codes(table.get("ignore", ()))
        self.exclude: tuple[str, ...] = tuple(table.get("exclude", ()))
        self.include: tuple[str, ...] = tuple(table.get("include", INCLUDED))
        self.strict: bool = table.get("strict", False)
        per_file: dict[str, list[str]] = table.get("per-file-ignores", {})
        self.per_file = tuple((pattern, _codes(codes)) for pattern, codes in per_file.items())

    def excludes(self, path: str) -> bool:
        """Whether `path` is left out of its folder."""
        return any(self._matches(path, pattern) for pattern in self.exclude)

    def silences(self, code: str, path: str) -> bool:
        """Whether findings of `code` are not wanted in `path`."""
        return any(
            code.startswith(codes) and self._matches(path, pattern)
            for pattern, codes in self.per_file
        )

    def _matches(self, path: str, pattern: str) -> bool:
        """Whether a file or one of the folders it is in is meant."""
        inner = os.path.relpath(os.path.abspath(path), self.root).replace(os.sep, "/")
        parts = inner.split("/")
        pattern = pattern.strip("/").removeprefix("./")
        if "/" not in pattern:
            return any(fnmatch(part, pattern) for part in parts)
        paths = ("/".join(parts[:n]) for n in range(1, len(parts) + 1))
        return any(fnmatch(part, pattern) for part in paths)


def _codes(codes: Iterable[str]) -> tuple[str, ...]:
    return tuple(code.strip().upper() for code in codes)


def settings_for(paths: Iterable[str]) -> Settings:
    """Of the nearest ``pyproject.toml`` with such a table, from the paths' common folder upwards.

    Raises:
        BadValueError: An unknown key, or a value of another kind.
    """
    folder = _common_folder(paths)
    while True:
        file = os.path.join(folder, "pyproject.toml")
        table = _table(file)
        if table is not None:
            _refuse_nonsense(file, table)
            return Settings(folder, table)
        parent = os.path.dirname(folder)
        if parent == folder:
            return Settings()
        folder = parent


def _common_folder(paths: Iterable[str]) -> str:
    whole = [os.path.abspath(path) for path in paths if path != "-"]
    try:
        common = os.path.commonpath(whole) if whole else os.getcwd()
    except ValueError:  # on two drives
        common = os.getcwd()
    return common if os.path.isdir(common) else os.path.dirname(common)


def _table(file: str) -> dict[str, Any] | None:
    try:
        with open(file, "rb") as opened:
            data = opened.read()
    except OSError:
        return None
    if b"halfstep" not in data:
        return None
    import tomllib  # most runs need none

    try:
        table = tomllib.loads(data.decode()).get("tool", {}).get("halfstep")
    except (ValueError, AttributeError) as error:
        raise BadValueError(f"{_shown(file)} cannot be read: {error}") from None
    return table if isinstance(table, dict) else None


def _shown(file: str) -> str:
    return min(os.path.relpath(file), file, key=len)


def _refuse_nonsense(file: str, table: dict[str, Any]) -> None:
    place = f"{_shown(file)}: [tool.halfstep]"
    for key, value in table.items():
        if key not in _KEYS:
            import difflib

            near = difflib.get_close_matches(key, _KEYS, 1, cutoff=0.0)[0]
            raise BadValueError(f"{place} has no {key!r}; did you mean {near!r}?")
        if not _fits(key, value):
            raise BadValueError(f"{place} {key} must be {_kind(key)}, got {value!r}.")


def _fits(key: str, value: object) -> bool:
    if key == "strict":
        return isinstance(value, bool)
    if key == "per-file-ignores":
        return isinstance(value, dict) and all(_is_list(codes) for codes in value.values())
    return _is_list(value)


def _is_list(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _kind(key: str) -> str:
    kinds = {"strict": "true or false", "per-file-ignores": "a table of lists of codes"}
    return kinds.get(key, "a list of strings")
