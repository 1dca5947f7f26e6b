"""An autocast that an ``and`` in the ``with`` throws away."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfstep.rules.examples import SETUP
from halfstep.rules.rule import Hit, SourceRule
from halfstep.rules.source import Source
from halfstep.rules.syntax import last

_LOOP = """\
for x, y in batches:
    with torch.autocast("cpu", dtype=torch.float16){joined} torch.enable_grad():{mark}
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""


class AutocastJoinedByAnd(SourceRule):
    """An autocast that an ``and`` in the ``with`` throws away.

    What: ``with autocast() and other():``. Why: Python evaluates ``a and b`` to `b`, so that the
    block enters the last context alone and runs in FP32, under a scaler that scales for nothing.
    Source: Python language reference, "Boolean operations".
    """

    severity = "warning"
    words = (("autocast",), (" and ", " or "))
    message = "this enters one of the contexts only: the block does not run under autocast."
    remedy = "write a comma: `with a, b:` enters both."
    bad = SETUP + _LOOP.format(joined=" and", mark="  # <- HS217")
    good = SETUP + _LOOP.format(joined=",", mark="")

    def check(self, source: Source) -> Iterator[Hit]:
        for item in source.nodes(ast.withitem):
            joined = item.context_expr
            if isinstance(joined, ast.BoolOp) and _loses_autocast(joined):
                yield Hit(source.place(joined))


def _loses_autocast(joined: ast.BoolOp) -> bool:
    """Whether an autocast stands where the value of the whole never comes from."""
    lost = joined.values[:-1] if isinstance(joined.op, ast.And) else joined.values[1:]
    return any(isinstance(value, ast.Call) and last(value) == "autocast" for value in lost)
