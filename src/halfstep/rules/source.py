"""What a rule over source text may ask; the linter's file object answers."""

from __future__ import annotations

import ast
from typing import Protocol

from halfstep.rules.events import Place


class Source(Protocol):
    """One parsed file."""

    path: str
    text: str
    tree: ast.Module

    def calls(self, *names: str) -> list[tuple[str, ast.Call]]:
        """Calls of one of `names` (dotted, as ``"torch.cuda.amp.autocast"``), with that name."""

    def resolve(self, node: ast.expr) -> str | None:
        """Dotted name that `node` stands for, imports and their aliases followed."""

    def place(self, node: ast.AST) -> Place:
        """Range of text of `node`."""
