"""One rank's own loss decides whether it skips a step that all ranks take together."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfstep.rules.rule import Hit, SourceRule
from halfstep.rules.source import Source

_PARALLEL = (
    "torch.nn.parallel.DistributedDataParallel",
    "torch.nn.parallel.distributed.DistributedDataParallel",
    "torch.distributed.init_process_group",
    "nn.parallel.DistributedDataParallel",
)
_MIXED = ("torch.amp.GradScaler", "torch.cuda.amp.GradScaler", "torch.autocast")
_MIXED_TOO = ("torch.amp.autocast", "torch.cuda.amp.autocast")
_ASKS = frozenset(["isfinite", "isnan", "isinf"])
_JOINED = ("reduce", "gather", "broadcast")


class RankLocalSkip(SourceRule):
    """One rank's own loss decides whether it skips a step that all ranks take together.

    What: in a program with several processes, ``if not torch.isfinite(loss): continue`` on a loss
    that no collective has joined. Why: the other ranks wait in their backward for the one that
    left, or step without it, and the copies of the model drift apart. Source: torch,
    `DistributedDataParallel`, uneven inputs.
    """

    severity = "note"
    message = "one rank alone may leave here, and the others wait for it or step without it."
    remedy = "join the decision first: torch.distributed.all_reduce the flag, then test it."
    bad = """\
import math

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

for x, y in [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(4)]:
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    finite = torch.isfinite(loss)
    if not math.isfinite(loss.item()):  # <- HS121
        continue
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
dist.destroy_process_group()
"""
    good = bad.replace(
        "if not math.isfinite(loss.item()):  # <- HS121",
        "dist.all_reduce(finite, dist.ReduceOp.MIN)\n    if not finite:",
    )

    def check(self, source: Source) -> Iterator[Hit]:
        if not source.calls(*_PARALLEL) or not source.calls(*_MIXED, *_MIXED_TOO):
            return
        for loop in ast.walk(source.tree):
            if isinstance(loop, (ast.For, ast.While)):
                yield from self._in_loop(loop, source)

    def _in_loop(self, loop: ast.For | ast.While, source: Source) -> Iterator[Hit]:
        joined = False
        for i, statement in enumerate(loop.body):
            called = _called(statement)
            joined |= any(word in name for name in called for word in _JOINED)
            leaves = isinstance(statement, ast.If) and _leaves(statement)
            trains = any("backward" in _called(later) for later in loop.body[i + 1 :])
            if leaves and trains and not joined:
                yield Hit(source.place(statement))


def _leaves(statement: ast.If) -> bool:
    last = statement.body[-1]
    return isinstance(last, ast.Continue) and bool(_called(statement.test) & _ASKS)


def _called(node: ast.AST) -> set[str]:
    functions = (n.func for n in ast.walk(node) if isinstance(n, ast.Call))
    return {f.attr if isinstance(f, ast.Attribute) else getattr(f, "id", "") for f in functions}
