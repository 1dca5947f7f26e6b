"""Autocast around the loss alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from halfstep.rules.evidence import callers_autocast
from halfstep.rules.examples import SETUP
from halfstep.rules.rule import Hit, SourceRule
from halfstep.rules.source import Autocast, Source
from halfstep.rules.syntax import calls_in, dotted, inside, last, receiver

_LOSS = re.compile(r"loss|criterion|cross_entropy|(^|_)(mse|bce|nll|ce)(_|$)", re.IGNORECASE)
_ON_TENSORS_WORDS = """
    mean sum float view reshape squeeze flatten long to detach item argmax unsqueeze size
"""
_ON_TENSORS = frozenset(_ON_TENSORS_WORDS.split())
_MODELS = frozenset(["model", "net", "network"])

_REST = """\
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""


class ForwardOutsideAutocast(SourceRule):
    """Autocast around the loss alone.

    What: the model is called before the autocast that its loss is computed in, and nowhere in one.
    Why: the whole forward runs in FP32, so nothing is faster or smaller, though the program looks
    as if it trained in mixed precision. Live, no product is seen under autocast. Source: torch,
    "Automatic Mixed Precision examples": autocast wraps the forward pass and the loss.
    """

    severity = "warning"
    readers = "LG"
    words = (("autocast",), ("oss", "criterion", "cross_entropy"))
    message = "the forward of {model} runs outside of autocast, in FP32; only the loss is inside."
    remedy = "move the call of {model} into the autocast that follows."
    bad = (
        SETUP
        + """\
for x, y in batches:
    output = model(x)  # <- HS213
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(output, y)
"""
        + _REST
    )
    good = (
        SETUP
        + """\
for x, y in batches:
    with torch.autocast("cpu", dtype=torch.float16):
        output = model(x)
        loss = nn.functional.mse_loss(output, y)
"""
        + _REST
    )

    def check(self, source: Source) -> Iterator[Hit]:
        autocasts = source.autocasts()
        if any(getattr(source.function(a.node), "name", "") == "forward" for a in autocasts):
            return  # the model has an autocast of its own
        for autocast in autocasts:
            block = next(source.parents(autocast.node))
            if isinstance(block, ast.withitem):
                block = next(source.parents(block))
            if isinstance(block, ast.With) and _is_loss_alone(autocast):
                yield from _forwards(source, autocast, block)


def _is_loss_alone(autocast: Autocast) -> bool:
    if not autocast.may_be_low or any(isinstance(n, ast.With) for n in autocast.body):
        return False
    names = [last(call) for call in calls_in(autocast.body)]
    losses = [name for name in names if _LOSS.search(name)]
    return bool(losses) and all(n in _ON_TENSORS or _LOSS.search(n) for n in names)


def _forwards(source: Source, autocast: Autocast, block: ast.With) -> Iterator[Hit]:
    function = source.function(block)
    if (
        source.is_inference(block)
        or source.autocast_around(block)
        or callers_autocast(source, block)
    ):
        return
    read = {
        node.id
        for node in inside(autocast.body)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    for name in sorted(read):
        values = source.assigned(name, block)
        if len(values) != 1 or source.function(values[0]) is not function:
            continue
        call = values[0]
        if not isinstance(call, ast.Call) or not _is_model(source, call.func):
            continue
        if source.autocast_around(call) or source.is_inference(call) or call.lineno > block.lineno:
            continue
        where = source.place(autocast.node)
        yield Hit(source.place(call), (where, "autocast begins"), model=ast.unparse(call.func))


def _is_model(source: Source, function: ast.expr) -> bool:
    """Whether what is called is a model that this file trains."""
    name = dotted(function)
    if not name:
        return False
    if last(function) in _MODELS:
        return True
    trained = ("parameters", "train")
    return any(
        last(node) in trained and dotted(receiver(node) or node) == name
        for node in source.nodes(ast.Call)
    )
