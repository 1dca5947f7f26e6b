"""Clocks that are read before the device has finished."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfstep.rules.evidence import has_low
from halfstep.rules.rule import Hit, SourceRule
from halfstep.rules.source import Source
from halfstep.rules.syntax import calls_in, dotted, inside, last, receiver

_CLOCKS = frozenset(["time.time", "time.perf_counter", "time.monotonic"])
# Calls that only queue work; any other may wait for the device.
_QUEUES_WORDS = """
    backward zero_grad scale range autocast no_grad inference_mode randn empty zeros mean sum
    cross_entropy mse_loss train parameters enumerate GradScaler update
"""
_QUEUES = frozenset(_QUEUES_WORDS.split())

_SETUP = """\
import time

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(4, 1).to(device)
x = torch.randn(8, 4, device=device)
start = time.perf_counter()
for _ in range(10):
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = model(x).mean()
    loss.backward()
"""


class TimingWithoutSynchronize(SourceRule):
    """Clocks that are read before the device has finished.

    What: a pair of clock readings with forward and backward between them and nothing that waits
    for the device. Why: CUDA works asynchronously, so this measures how fast work is queued; FP16
    then seems as fast as FP32, or far too fast. Source: torch, "CUDA semantics", section on
    asynchronous execution.
    """

    severity = "warning"
    words = (("autocast", "GradScaler", ".scale("), ("time.", "perf_counter"), ("cuda",))
    message = "the device may still be working here: this is the time to queue the work."
    remedy = "call torch.cuda.synchronize() before each reading of the clock."
    bad = _SETUP + "print(time.perf_counter() - start)  # <- HS302\n"
    good = (
        _SETUP
        + "if device == 'cuda':\n    torch.cuda.synchronize()\nprint(time.perf_counter() - start)\n"
    )

    def check(self, source: Source) -> Iterator[Hit]:
        if not has_low(source):
            return
        blocks = {id(b): b for a in source.nodes(ast.Assign) if (b := _block(source, a))}
        for block in blocks.values():
            yield from _pairs(source, block)


def _block(source: Source, statement: ast.Assign) -> list[ast.stmt] | None:
    """The statements around one that starts a clock."""
    if not _starts(source, statement):
        return None
    parent = next(source.parents(statement))
    blocks = (getattr(parent, field, None) for field in ("body", "orelse"))
    return next((b for b in blocks if isinstance(b, list) and statement in b), None)


def _pairs(source: Source, block: list[ast.stmt]) -> Iterator[Hit]:
    for position, statement in enumerate(block):
        started = _starts(source, statement)
        if not started:
            continue
        for end in range(position + 1, len(block)):
            clock = _difference(source, block[end], started) or _second(source, block, end, started)
            if clock is not None:
                between = block[position + 1 : end]
                if _only_queues(source, between) and not source.is_inference(statement):
                    yield Hit(source.place(clock), (source.place(statement), "the clock started"))
                break
            if _starts(source, block[end]) == started:
                break


def _second(source: Source, block: list[ast.stmt], end: int, started: str) -> ast.AST | None:
    """The second reading, if its variable less the first is what follows."""
    name, statement = _starts(source, block[end]), block[end]
    for later in block[end + 1 :] if name else ():
        for node in inside(later):
            if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Sub):
                continue
            if (dotted(node.left), dotted(node.right)) == (name, started):
                return statement
    return None


def _is_clock(source: Source, node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and source.resolve(node.func) in _CLOCKS


def _starts(source: Source, statement: ast.stmt) -> str:
    """The variable that takes the time."""
    if isinstance(statement, ast.Assign) and _is_clock(source, statement.value):
        (target, *others) = statement.targets
        return target.id if isinstance(target, ast.Name) and not others else ""
    return ""


def _difference(source: Source, statement: ast.stmt, started: str) -> ast.AST | None:
    """``clock() - started`` in a statement."""
    for node in inside(statement):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            right = node.right
            if isinstance(right, ast.Name) and right.id == started:
                return node if _is_clock(source, node.left) else None
    return None


def _only_queues(source: Source, between: list[ast.stmt]) -> bool:
    """Whether the device works between, and the host surely does not wait for it."""
    calls = list(calls_in(between))
    works = any(last(call) == "backward" for call in calls)
    loops = [n for n in inside(between) if isinstance(n, (ast.For, ast.While))]
    plain = all(
        isinstance(n, ast.For) and isinstance(n.iter, ast.Call) and last(n.iter) == "range"
        for n in loops
    )
    tests = any(isinstance(n, (ast.If, ast.Assert, ast.Try)) for n in inside(between))
    return works and plain and not tests and all(_queues(source, call) for call in calls)


def _queues(source: Source, call: ast.Call) -> bool:
    if last(call) in _QUEUES:
        return True
    if last(call) == "step":  # a scaler's step waits, an optimizer's does not
        owner = receiver(call)
        return owner is not None and not source.is_scaler(owner) and "opt" in last(owner).lower()
    return last(call) in ("model", "net", "criterion", "loss_fn")
