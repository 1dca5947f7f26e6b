"""``lost_updates=True``: which weights an update left as they were, to the bit."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from halfstep.update import OptimizerSlot
from halfstep.update.ranks.ranks import Ranks
from halfstep.update.ranks.shards import local_of
from halfstep.update.readback import Readback


class LostUpdates:
    """The weights before an update, and where they had a gradient.

    Costs a copy of the weights and a mask while the update runs; among several ranks also one
    collective.

    Args:
        slots: Those about to step.
        ranks: Those that train together.
    """

    def __init__(self, slots: Sequence[OptimizerSlot], ranks: Ranks) -> None:
        self._ranks = ranks
        self._parameters = {
            slot.name_of(p): p
            for slot in slots
            for p in slot.parameters()
            if p.grad is not None or ranks.are_several  # with gradients on other ranks
        }
        self._before = {
            name: (local_of(p.detach()).clone(), _wanted(p)) for name, p in self._parameters.items()
        }

    def compare(self) -> tuple[list[str], Readback]:
        """Names, and for each the share of its weights that had a gradient and did not move.

        Syncs: no; reading the shares waits for the update.
        """
        counts = []
        for name, p in self._parameters.items():
            before, wanted = self._before[name]
            lost = wanted & (local_of(p.detach()) == before)
            counts += [lost.sum(), wanted.sum()]
        home = counts[0].device
        both = torch.stack([count.to(home) for count in counts]).double()
        if self._ranks.are_several:
            both = self._ranks.sum(both)
        lost, wanted = both[0::2], both[1::2]
        return list(self._parameters), Readback(lost / wanted.clamp(min=1))


def _wanted(p: Tensor) -> Tensor:
    if p.grad is None:
        return torch.zeros_like(local_of(p.detach()), dtype=torch.bool)
    return local_of(p.grad.to_dense() if p.grad.is_sparse else p.grad) != 0
