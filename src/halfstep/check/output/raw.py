"""A finding as the parser counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from halfstep.records.finding import Finding
    from halfstep.rules.rule import Edit


class Raw(NamedTuple):
    """A finding with places as the parser counts them: in the piece of a document, in bytes.

    Attributes:
        finding: What and where.
        end: Line and column where the text ends that it speaks of.
        edits: Put it right.
        applicability: Whether training does the same after them.
    """

    finding: Finding
    end: tuple[int, int]
    edits: tuple[Edit, ...] = ()
    applicability: Literal["safe", "unsafe"] | None = None
