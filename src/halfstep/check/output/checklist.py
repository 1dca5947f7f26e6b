"""The five lines of a correct mixed-precision step, and what a check knows about each."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from halfstep.records.finding import Finding


class Line(NamedTuple):
    """One line of the checklist.

    Attributes:
        text: What holds in a correct program.
        codes: Rules that say it does not.
        seen: What a program has that is concerned by it.
    """

    text: str
    codes: tuple[str, ...]
    seen: re.Pattern[str]


CHECKLIST = (
    Line(
        "autocast around forward and loss only",
        ("HS114", "HS115", "HS201", "HS205", "HS212", "HS213", "HS214"),
        re.compile(r"\bautocast\b"),
    ),
    Line(
        "unscale before clip, once per optimizer",
        ("HS101", "HS102", "HS103", "HS120", "HS125", "HS129"),
        re.compile(r"\bunscale_|\bclip_grad_(norm|value)_|\bclip_grads_with_norm_"),
    ),
    Line(
        "max_norm untouched",
        ("HS128",),
        re.compile(r"\bclip_grad_norm_|\bmax_norm\b"),
    ),
    Line(
        "scale watched",
        ("HS109", "HS113", "HS121", "HS210", "HS301"),
        re.compile(r"\bget_scale\(|\blast_outcome\b|\bfound_inf"),
    ),
    Line(
        "BF16 without scaling",
        ("HS202", "HS203", "HS211"),
        re.compile(r"\bbfloat16\b|\bbf16\b"),
    ),
)
_TRAINS = re.compile(r"\bautocast\b|GradScaler|\bscaler\b")


def evidence(text: str) -> set[str]:
    """The lines that a program is concerned by."""
    if not _TRAINS.search(text):
        return set()
    return {line.text for line in CHECKLIST if line.seen.search(text)}


def answers(
    seen: set[str], findings: Iterable[Finding], run: Iterable[str]
) -> list[tuple[str, str]]:
    """Each line with ``"ok"``, ``"not seen"``, ``"not asked"`` or the codes that speak against it.

    Args:
        seen: From `evidence`, over all files.
        findings: That are shown.
        run: Codes of the rules that were asked.

    Example:
        >>> [answer for _, answer in answers({"max_norm untouched"}, [], ["HS128", "HS203"])]
        ['not asked', 'not asked', 'ok', 'not asked', 'not seen']
    """
    codes, asked = sorted({finding.code for finding in findings}), tuple(run)
    return [(line.text, _answer(line, line.text in seen, codes, asked)) for line in CHECKLIST]


def _answer(line: Line, seen: bool, codes: list[str], run: tuple[str, ...]) -> str:
    against = [code for code in codes if code in line.codes]
    if against:
        return ", ".join(against)
    if not any(code in line.codes for code in run):
        return "not asked"
    return "ok" if seen else "not seen"
