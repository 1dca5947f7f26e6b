"""The last backward of a window under `no_sync`: the ranks step on their own gradients."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.rules.events import BACKWARD, NO_SYNC_ENTER, NO_SYNC_EXIT, STEP, ZERO_GRAD, Event
from halfstep.rules.ledger import Ledger
from halfstep.rules.rule import Hit, OrderRule


class NoSyncOnWrongMicroBatch(OrderRule):
    """The last backward of a window under `no_sync`: the ranks step on their own gradients.

    What: `model.no_sync()` around every micro-batch, or around the last one instead of the first
    ones (``i % n`` where the step asks ``(i + 1) % n``). Why: gradients are averaged over the
    ranks in the first backward outside `no_sync`; without one before the step each rank applies
    its own, and the copies of the model drift apart. Source: torch,
    `DistributedDataParallel.no_sync`.
    """

    severity = "warning"
    readers = "L"
    listens = (NO_SYNC_ENTER, NO_SYNC_EXIT, BACKWARD, ZERO_GRAD, STEP)
    message = "the step follows a backward under no_sync: these gradients were not averaged."
    remedy = "leave no_sync for the last micro-batch of the window, the one before the step."
    bad = """\
import os

import torch
import torch.distributed as dist
from torch import nn

os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
batches = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(4)]

for x, y in batches:
    with model.no_sync():  # <- HS122
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
dist.destroy_process_group()
"""
    good = bad.replace("model.no_sync():  # <- HS122", "torch.enable_grad():")

    def __init__(self) -> None:
        self._inside: list[Event] = []
        self._apart: dict[str, tuple[Event, Event]] = {}

    def on_event(self, event: Event, ledger: Ledger) -> Iterator[Hit]:
        if event.kind == NO_SYNC_ENTER:
            self._inside.append(event)
        elif event.kind == NO_SYNC_EXIT:
            self._inside = self._inside[:-1]
        for optimizer in event.optimizers:
            apart = self._apart.pop(optimizer, None)
            if event.kind == BACKWARD and self._inside:
                self._apart[optimizer] = (self._inside[-1], event)
            elif event.kind == STEP and apart and ledger.window(optimizer).known:
                if apart[0].fact("chosen"):
                    continue
                yield Hit(apart[0], (apart[1], "backward"), (event, "step"))
