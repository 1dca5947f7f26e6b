"""``lost_updates=True``: which weights an update left as they were, to the bit."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from halfstep.update import OptimizerSlot
from halfstep.update.readback import Readback


class LostUpdates:
    """The weights before an update, and where they had a gradient.

    Costs a copy of the weights and a mask while the update runs.

    Args:
        slots: Those about to step.
    """

    def __init__(self, slots: Sequence[OptimizerSlot]) -> None:
        self._parameters = {
            slot.name_of(p): p for slot in slots for p in slot.parameters() if p.grad is not None
        }
        self._before = {n: (p.detach().clone(), _wanted(p)) for n, p in self._parameters.items()}

    def compare(self) -> tuple[list[str], Readback]:
        """Names, and for each the share of its weights that had a gradient and did not move.

        Syncs: no; reading the shares waits for the update.
        """
        shares = []
        for name, p in self._parameters.items():
            before, wanted = self._before[name]
            lost = wanted & (p.detach() == before)
            shares.append(lost.sum().double() / wanted.sum().clamp(min=1))
        home = shares[0].device
        return list(self._parameters), Readback(torch.stack([s.to(home) for s in shares]))


def _wanted(p: Tensor) -> Tensor:
    assert p.grad is not None
    return (p.grad.to_dense() if p.grad.is_sparse else p.grad) != 0
