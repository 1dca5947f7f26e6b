"""`Finding`: one mistake of a training program, at the line to change.

Named tuples: the module `dataclasses` alone would be a fifteenth of the time of a check.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

Severity = Literal["error", "warning", "note"]


class Related(NamedTuple):
    """Another line that a finding speaks of.

    Attributes:
        path: File of the line.
        line: Its number, from 1.
        message: What that line has to do with the finding.
        cell: In a notebook, the cell in which `line` counts.
    """

    path: str
    line: int
    message: str
    cell: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return _without_cell(self._asdict())


class Finding(NamedTuple):
    """What a rule says about one line.

    Attributes:
        code: Code of the rule, as ``"HS101"``.
        name: Name of the rule, as ``"clip-before-unscale"``.
        severity: ``"error"`` (the result is wrong or the run will stop), ``"warning"`` (quality,
            time or a later resume suffers) or ``"note"`` (harmless in most runs).
        path: File of the line to change.
        line: Its number, from 1.
        column: Column in it, from 1.
        message: What the mistake does to training.
        remedy: What to write instead.
        related: The other lines involved.
        count: How many times it was seen: 1 in source code, more in a running script.
        cell: In a notebook, the cell in which `line` counts, from 1.
    """

    code: str
    name: str
    severity: Severity
    path: str
    line: int
    column: int
    message: str
    remedy: str
    related: tuple[Related, ...] = ()
    count: int = 1  # type: ignore[assignment] # a tuple has a method of that name
    cell: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        data = _without_cell(self._asdict())
        return {**data, "related": [related.to_dict() for related in self.related]}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Finding:
        """The inverse of `to_dict`."""
        return cls(**{**data, "related": tuple(Related(**item) for item in data["related"])})

    def __str__(self) -> str:
        cell = f"cell {self.cell}:" if self.cell else ""
        place = f"{self.path}:{cell}{self.line}:{self.column}"
        seen = f" (seen {self.count} times)" if self.count > 1 else ""
        return f"{place}: {self.code} {self.message}{seen}"


def _without_cell(data: dict[str, Any]) -> dict[str, Any]:
    """Only notebooks have cells."""
    return {k: v for k, v in data.items() if k != "cell" or v is not None}
