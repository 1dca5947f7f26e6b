"""What every page begins with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["good", "note", "bad"]
WORDS: dict[Level, str] = {"good": "Fine", "note": "Look at this", "bad": "Broken"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to think of something.

    Attributes:
        level: ``"good"``, ``"note"`` (look at it) or ``"bad"`` (it did not work).
        headline: One sentence.
        details: More sentences.
        word: The level in one or a few words; default: from `WORDS`.
    """

    level: Level
    headline: str
    details: tuple[str, ...] = ()
    word: str = ""

    def __str__(self) -> str:
        return self.word or WORDS[self.level]
