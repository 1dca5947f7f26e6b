"""`Checked`: what a check found, as an output format sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # records of findings and rules take time to import; most checks find nothing
    from collections.abc import Callable, Sequence

    from halfstep.records.rule_text import RuleText
    from halfstep.records.source_finding import SourceFinding


class Checked(NamedTuple):
    """A check that is done. What few formats need is a function, called by those that do.

    Attributes:
        found: The findings to show, by path, line and code.
        num_files: Files that were checked.
        problems: Path and reason of each file that could not be checked.
        trains: Whether anything in the files trains in mixed precision.
        checklist: Gives each line of the checklist with its answer.
        rules: Gives the rules that were asked.
        version: Of halfstep.
        statistics: Whether findings are to be counted by rule.
        colours: Whether the reader is a terminal that shows colours.
    """

    found: Sequence[SourceFinding]
    num_files: int
    problems: Sequence[tuple[str, str]]
    trains: bool
    checklist: Callable[[], list[tuple[str, str]]]
    rules: Callable[[], list[RuleText]]
    version: str
    statistics: bool = False
    colours: bool = False
