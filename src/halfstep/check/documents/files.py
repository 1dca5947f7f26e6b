"""Which files are checked, and their bytes."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatch
from io import BytesIO

from halfstep.records.errors import BadValueError

INCLUDED = ("*.py", "*.ipynb")
_LARGEST = 8 * 1024 * 1024
_SKIPPED = frozenset(["__pycache__", "node_modules", "site-packages", "build", "dist", "venv"])
_TEST = re.compile(r"(^|[\\/])(tests?[\\/]|conftest\.py$|test_[^\\/]*$|[^\\/]*_test\.py$)")


class Unreadable(Exception):  # noqa: N818 - a line of the report
    """A file that cannot be checked; the text says why."""


def source_files(
    paths: Iterable[str],
    include: tuple[str, ...] = INCLUDED,
    excluded: Callable[[str], bool] = lambda path: False,
) -> Iterator[tuple[str, bool]]:
    """Files, each once, and whether they were named: a folder leaves tests and environments out.

    Args:
        paths: Files and folders; links inside of folders are not followed to other folders.
        include: Patterns for the names of files in folders.
        excluded: Which paths inside of folders to leave out.
    """
    seen: set[str] = set()
    for path in paths:
        found: Iterator[tuple[str, bool]]
        if os.path.isdir(path):
            found = ((inner, False) for inner in _inside(path, include, excluded))
        elif os.path.lexists(path):
            found = iter([(path, True)])
        else:
            raise BadValueError(f"no such file or folder: {path}")
        for name, named in found:
            name = os.path.normpath(name)
            if name not in seen:
                seen.add(name)
                yield name, named


def _inside(
    folder: str, include: tuple[str, ...], excluded: Callable[[str], bool]
) -> Iterator[str]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(f for f in folders if _is_entered(os.path.join(place, f), excluded))
        for name in sorted(names):
            path = os.path.join(place, name)
            if not any(fnmatch(name, pattern) for pattern in include):
                continue
            if not _TEST.search(os.path.relpath(path, folder)) and not excluded(path):
                yield path


def _is_entered(folder: str, excluded: Callable[[str], bool]) -> bool:
    name = os.path.basename(folder)
    if name in _SKIPPED or name.startswith(".") or excluded(folder):
        return False
    return not os.path.exists(os.path.join(folder, "pyvenv.cfg"))


def read_bytes(path: str) -> bytes:
    """The file as it is."""
    try:
        status = os.stat(path)
        if stat.S_ISREG(status.st_mode) and status.st_size > _LARGEST:
            raise Unreadable(f"larger than {_LARGEST // 1024 // 1024} MiB")
        if stat.S_ISFIFO(status.st_mode) and not path.startswith("/dev/"):
            raise Unreadable("not a file")  # reading would wait for a writer
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise Unreadable((error.strerror or str(error)).lower()) from None


def _declared(data: bytes) -> str | None:
    """The encoding that a byte order mark or a comment declares."""
    if not data.startswith(b"\xef\xbb\xbf") and b"coding" not in b"".join(data.split(b"\n", 2)[:2]):
        return None
    import tokenize  # it takes as long to import as to check a small file

    return tokenize.detect_encoding(BytesIO(data).readline)[0]


def decode(data: bytes) -> tuple[str, str]:
    """Text of a source file and its encoding: the declared one, or UTF-8."""
    if b"\0" in data:
        raise Unreadable("not a text file")
    try:
        encoding = _declared(data) or "utf-8"
        return data.decode(encoding), encoding
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        if str(error).startswith("unknown encoding"):
            raise Unreadable(f"it declares an {error}") from None
        raise Unreadable("not UTF-8, and no other encoding is declared") from None
