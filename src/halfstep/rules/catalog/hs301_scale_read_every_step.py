"""The scale read back from the device in every step."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from halfstep.rules.examples import SETUP
from halfstep.rules.rule import Hit, SourceRule
from halfstep.rules.source import Source
from halfstep.rules.syntax import inside, last, reads, receiver

_LOOP = """\
for step, (x, y) in enumerate(batches):
    scaler.scale(loss_of(x, y)).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
# A condition on the scaler itself holds in every step or in none.
_ALWAYS = re.compile(r"amp|scaler|fp16|half|mixed", re.IGNORECASE)


class ScaleReadEveryStep(SourceRule):
    """The scale read back from the device in every step.

    What: `get_scale()` in the training loop, under no condition. Why: the scale lives on the
    device, so the host waits there until all queued work is done and launches nothing meanwhile.
    Comparing it to tell a skip is silent: stock torch offers nothing else.
    Source: ``torch/amp/grad_scaler.py``: `get_scale` calls ``.item()`` and says so.
    """

    severity = "note"
    words = (("get_scale", '["scale"]', "['scale']"),)
    message = "the host waits for the device here in every step."
    remedy = "read the scale every hundred steps, or when a log line is due."
    bad = SETUP + _LOOP + "    print(step, scaler.get_scale())  # <- HS301\n"
    good = SETUP + _LOOP + "    if step % 100 == 0:\n        print(step, scaler.get_scale())\n"

    def check(self, source: Source) -> Iterator[Hit]:
        for node in source.nodes(ast.Call):
            if last(node) == "get_scale" or _is_read_from_state(source, node):
                owner = receiver(node)
                if owner is None or not source.is_scaler(owner) or _tests_a_skip(source, node):
                    continue
                if any((last(p) or "").startswith("clip_grad") for p in source.parents(node)):
                    continue  # HS128 says the worse thing about it
                if _every_step(source, node):
                    yield Hit(source.place(node))


def _is_read_from_state(source: Source, call: ast.Call) -> bool:
    """``scaler.state_dict()["scale"]``."""
    parent = next(source.parents(call))
    if last(call) != "state_dict" or not isinstance(parent, ast.Subscript):
        return False
    return isinstance(parent.slice, ast.Constant) and parent.slice.value == "scale"


def _tests_a_skip(source: Source, call: ast.Call) -> bool:
    """Whether the scale is compared with another: that is how stock torch tells a skip."""
    parent = next(source.parents(call))
    if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name):
        name = parent.targets[0].id
        nodes = ast.walk(source.function(call))
        return any(isinstance(n, ast.Compare) and reads(n, name) for n in nodes)
    return any(isinstance(p, ast.Compare) for p in source.parents(call))


def _every_step(source: Source, call: ast.Call) -> bool:
    inner: ast.AST = call
    for parent in source.parents(call):
        if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return False
        if isinstance(parent, (ast.For, ast.While)):
            return inner in parent.body and _steps(parent)
        if isinstance(parent, ast.If) and inner is not parent.test and not _always(parent.test):
            return False
        if isinstance(parent, (ast.IfExp, ast.BoolOp, ast.ExceptHandler)):
            return False
        inner = parent
    return False


def _always(test: ast.expr) -> bool:
    text = ast.unparse(test)
    return bool(_ALWAYS.search(text)) and "%" not in text


def _steps(loop: ast.For | ast.While) -> bool:
    """Whether a step is made in each turn of this loop, rather than in one inside it."""
    waiting: list[ast.AST] = list(loop.body)
    inner = [n for n in inside(waiting) if isinstance(n, (ast.For, ast.While))]
    in_inner = {id(n) for other in inner for n in inside(other.body)}
    return any(
        isinstance(n, ast.Call) and last(n) in ("update", "backward") and id(n) not in in_inner
        for n in inside(waiting)
    )
