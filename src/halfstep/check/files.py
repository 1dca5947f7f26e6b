"""Which files are checked, and their text."""

from __future__ import annotations

import os
import re
import tokenize
from collections.abc import Iterable, Iterator
from io import BytesIO

from halfstep.records.errors import BadValueError

_SKIPPED = frozenset(["__pycache__", "node_modules", "site-packages", "build", "dist", "venv"])
_TEST = re.compile(r"(^|[\\/])(tests?[\\/]|conftest\.py$|test_[^\\/]*$|[^\\/]*_test\.py$)")


class Unreadable(Exception):  # noqa: N818 - a line of the report
    """A file that cannot be checked; the text says why."""


def python_files(paths: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Files, and whether they were named: a folder leaves tests and environments out."""
    for path in paths:
        if os.path.isdir(path):
            yield from ((found, False) for found in _inside(path))
        elif os.path.exists(path):
            yield path, True
        else:
            raise BadValueError(f"no such file or folder: {path}")


def _inside(folder: str) -> Iterator[str]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(
            f
            for f in folders
            if f not in _SKIPPED
            and not f.startswith(".")
            and not os.path.exists(os.path.join(place, f, "pyvenv.cfg"))
        )
        for name in sorted(names):
            path = os.path.join(place, name)
            if name.endswith(".py") and not _TEST.search(os.path.relpath(path, folder)):
                yield path


def read_bytes(path: str) -> bytes:
    """The file as it is."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise Unreadable(error.strerror or str(error)) from None


def decode(data: bytes) -> str:
    """Text of a source file, in the encoding that it declares."""
    if b"\0" in data:
        raise Unreadable("not a text file")
    try:
        encoding, _ = tokenize.detect_encoding(BytesIO(data).readline)
        return data.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError):
        raise Unreadable("not UTF-8, and no other encoding is declared") from None
