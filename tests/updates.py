"""An update of one optimizer, without an engine around it."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

import halfstep as hs
from halfstep.update import OptimizerSlot, Update, Window


def one_update(optimizer: Optimizer, loss_scale: hs.LossScale, **settings: Any) -> Update:
    return Update([OptimizerSlot("optimizer", optimizer, loss_scale, **settings)])


def run_update(update: Update, window: Window) -> hs.StepOutcome:
    update.slots[0].window = window
    return update.run(update.slots)
