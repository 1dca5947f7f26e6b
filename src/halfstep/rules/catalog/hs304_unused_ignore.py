"""An ignore comment that silences nothing."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.rules.examples import SETUP
from halfstep.rules.rule import Hit, SourceRule
from halfstep.rules.source import Source

_LOOP = """\
for x, y in batches:
    scaler.scale(loss_of(x, y)).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0){comment}
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""


class UnusedIgnore(SourceRule):
    """An ignore comment that silences nothing.

    What: `# halfstep: ignore[...]` on a line about which none of its rules has anything to say, or
    that names no rule.
    Why: the mistake it was written for is gone, and the next one on that line would be hidden.
    Source: halfstep itself; judged only where all rules that the comment names were asked.
    """

    severity = "note"
    words = (("halfstep:",),)
    message = "this comment silences nothing."
    remedy = "delete the comment, or write it as `# halfstep: ignore[HS109]`."
    bad = SETUP + _LOOP.format(comment="  # halfstep: ignore[HS101]  # <- HS304")
    good = SETUP + _LOOP.format(comment="")

    def check(self, source: Source) -> Iterator[Hit]:
        """Nothing: the linter knows it when all files have been checked."""
        return iter(())
