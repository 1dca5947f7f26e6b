"""Which names files take from each other: a repair must not give them another meaning."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator

_NAMES = frozenset(["autocast", "GradScaler", "custom_fwd", "custom_bwd", "amp"])
_SPEAKS = re.compile(rb"autocast|GradScaler|custom_[fb]wd|\bamp\b|import\s*\*")


class Importers:
    """Names of AMP that files import from files of the same project.

    Args:
        files: That were checked.
        repaired: Some of them; what stands beside these is looked at too.
    """

    def __init__(self, files: Iterable[str], repaired: Iterable[str]) -> None:
        self._taken: dict[str, set[str]] = {}
        self._unknown = False
        folders = {os.path.dirname(path) for path in repaired}
        for path in {*files, *(p for folder in folders for p in _python_files(folder))}:
            text = _read(path)
            if _SPEAKS.search(text):
                self._look(text)

    def taken_from(self, path: str) -> frozenset[str]:
        """What others take from a file; they may write its module with or without a package."""
        if self._unknown:
            return _NAMES
        return frozenset(self._taken.get(os.path.splitext(os.path.basename(path))[0], ()))

    def _look(self, text: bytes) -> None:
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            self._unknown = True
            return
        for module, name in _pairs(tree):
            names = _NAMES if name == "*" else {name} & _NAMES
            self._taken.setdefault(module, set()).update(names)


def _pairs(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Last part of a module and the name that is taken from it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (((node.module or "").rpartition(".")[2], a.name) for a in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, (ast.Name, ast.Attribute)):
            yield getattr(node.value, "attr", getattr(node.value, "id", "")), node.attr


def _python_files(folder: str) -> list[str]:
    try:
        names = os.listdir(folder or os.curdir)
    except OSError:
        return []
    return [os.path.join(folder, name) for name in names if name.endswith(".py")]


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read() if path.endswith(".py") else b""
    except OSError:
        return b""
