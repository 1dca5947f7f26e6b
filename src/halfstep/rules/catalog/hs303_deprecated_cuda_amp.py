"""Calls of `torch.cuda.amp`, which torch has deprecated."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfstep.rules.examples import SETUP
from halfstep.rules.rule import Edit, Hit, SourceRule
from halfstep.rules.source import Source

_NAMES = tuple(f"torch.cuda.amp.{name}" for name in ("GradScaler", "autocast"))


class DeprecatedCudaAmp(SourceRule):
    """Calls of `torch.cuda.amp`, which torch has deprecated.

    What: `torch.cuda.amp.autocast` and `GradScaler`. Why: they warn since torch 2.4 and are to be
    removed; the new ones take the device as their first argument. Source:
    ``torch/cuda/amp/autocast_mode.py``, ``torch/cuda/amp/grad_scaler.py``.
    """

    severity = "warning"
    fixes = "safe"
    message = "{name} is deprecated and will be removed."
    remedy = 'write torch.amp.{last}("cuda", ...).'
    bad = (
        SETUP.replace('torch.amp.GradScaler("cpu", ', "torch.cuda.amp.GradScaler(").replace(
            "init_scale=1024.0)", "init_scale=1024.0)  # <- HS303"
        )
        + """\
with torch.cuda.amp.autocast():  # <- HS303
    print(nn.functional.mse_loss(model(batches[0][0]), batches[0][1]))
"""
    )
    good = (
        SETUP
        + """\
with torch.amp.autocast("cuda"):
    print(nn.functional.mse_loss(model(batches[0][0]), batches[0][1]))
"""
    )

    def check(self, source: Source) -> Iterator[Hit]:
        for name, call in source.calls(*_NAMES):
            last = name.rsplit(".", 1)[-1]
            edits = self._edits(source, call, last)
            yield Hit(source.place(call), edits=edits, name=name, last=last)

    def _edits(self, source: Source, call: ast.Call, last: str) -> tuple[Edit, ...]:
        """Only where the whole name stands there: an import needs a look at all its uses."""
        if ast.unparse(call.func) != f"torch.cuda.amp.{last}":
            return ()
        function = source.place(call.func)
        after = function._replace(line=function.end_line, column=function.end_column + 1)
        comma = ", " if call.args or call.keywords else ""
        start = after._replace(end_line=after.line, end_column=after.column)
        return Edit(function, f"torch.amp.{last}"), Edit(start, f'"cuda"{comma}')
