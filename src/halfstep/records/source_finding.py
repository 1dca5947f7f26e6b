"""`SourceFinding`: a finding in source code, with the text around it and its repair."""

from __future__ import annotations

from typing import Literal, NamedTuple

from halfstep.records.finding import Finding


class Replacement(NamedTuple):
    """A range of text and what comes instead; lines and columns count from 1.

    Attributes:
        line: Of the first character that goes.
        column: Of the same.
        end_line: Of the first character that stays.
        end_column: Of the same.
        text: What comes instead.
    """

    line: int
    column: int
    end_line: int
    end_column: int
    text: str


class SourceFinding(NamedTuple):
    """A finding in source code.

    Attributes:
        finding: What and where.
        end_line: Where the call ends that the finding speaks of.
        end_column: Of the first character behind it.
        source: Text of the finding's line.
        related_source: Text of the related lines, one each.
        repair: Puts it right; empty where only a person can.
        applicability: ``"safe"``: training does the same afterwards. ``"unsafe"``: it does not.
    """

    finding: Finding
    end_line: int
    end_column: int
    source: str = ""
    related_source: tuple[str, ...] = ()
    repair: tuple[Replacement, ...] = ()
    applicability: Literal["safe", "unsafe"] | None = None
