"""`RuleText`: what a rule says of itself, as plain data for every renderer."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from halfstep.records.finding import Severity


@dataclass(frozen=True, slots=True)
class RuleText:
    """One rule, for a reader.

    Attributes:
        code: As ``"HS101"``.
        name: As ``"clip-before-unscale"``.
        severity: Of its findings, if they do not say otherwise.
        readers: ``"L"`` where the linter knows it, ``"G"`` where the guard does.
        fixes: Whether the linter can put it right, and whether training does the same afterwards.
        summary: One line.
        text: What, why and the source.
        message: What the mistake does to training; ``{fields}`` are filled in a finding.
        remedy: What to write instead, likewise.
        bad: A script that runs and makes the mistake.
        good: The same done right.
    """

    code: str
    name: str
    severity: Severity
    readers: str
    fixes: Literal["safe", "unsafe"] | None
    summary: str
    text: str
    message: str
    remedy: str
    bad: str
    good: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> RuleText:
        """The inverse of `to_dict`."""
        return cls(**data)
