"""Binary cross-entropy of probabilities under autocast."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfstep.rules.evidence import callers_autocast
from halfstep.rules.rule import Hit, SourceRule
from halfstep.rules.source import Source
from halfstep.rules.syntax import dotted, last

_SETUP = """\
import torch
from torch import nn

device = "cuda"
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler(device)
x, y = torch.randn(8, 4), torch.ones(8, 1)
"""
_REST = """\
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
optimizer.zero_grad()
"""


class BceUnderAutocast(SourceRule):
    """Binary cross-entropy of probabilities under autocast.

    What: `binary_cross_entropy` or `BCELoss` under autocast for CUDA. Why: the backward of its
    logarithm overflows FP16, so torch refuses it there and the run stops with a RuntimeError; on a
    CPU it does not, which is how it slips through. Source: torch, "Autocast Op Reference", "Prefer
    binary_cross_entropy_with_logits over binary_cross_entropy".
    """

    words = (("autocast",), ("binary_cross_entropy", "BCELoss"))
    message = "torch refuses binary_cross_entropy under autocast on CUDA; the run will stop here."
    remedy = "give the logits to binary_cross_entropy_with_logits (BCEWithLogitsLoss)."
    bad = (
        _SETUP
        + """\
with torch.autocast(device):
    loss = nn.functional.binary_cross_entropy(model(x).sigmoid(), y)  # <- HS205
"""
        + _REST
    )
    good = (
        _SETUP
        + """\
with torch.autocast(device):
    loss = nn.functional.binary_cross_entropy_with_logits(model(x), y)
"""
        + _REST
    )

    def check(self, source: Source) -> Iterator[Hit]:
        for node in source.nodes(ast.Call):
            if not _is_bce(source, node):
                continue
            autocast = source.autocast_around(node) or callers_autocast(source, node)
            if autocast is None or autocast.enabled is False or "cuda" not in autocast.devices:
                continue
            yield Hit(source.place(node), (source.place(autocast.node), "autocast"))


def _is_bce(source: Source, call: ast.Call) -> bool:
    if last(call) == "binary_cross_entropy":
        return (source.resolve(call.func) or "").startswith("torch.")
    values = source.assigned(dotted(call.func), call) if dotted(call.func) else []
    return bool(values) and all(
        isinstance(value, ast.Call) and source.resolve(value.func) == "torch.nn.BCELoss"
        for value in values
    )
