"""The share of gradient values that are exactly zero, counted while backward runs."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from halfstep.update.optimizers.gradients import values_of
from halfstep.update.optimizers.observers import leaves_gradients_alone
from halfstep.update.readback import Readback


class ZeroGradients:
    """Counts zeros in every gradient as backward leaves it: still scaled, before the update.

    Hooks see the gradients without one more pass over the engine's road: each is read once more
    per micro-batch, right after it was written, and nothing waits. The zeros of a window are those
    of its last micro-batch, when all of them are summed up.

    Args:
        models: Their trainable parameters are watched until `remove`.
    """

    def __init__(self, models: Iterable[nn.Module]) -> None:
        self._counts: dict[int, tuple[Tensor, int]] = {}
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._count)  # type: ignore[no-untyped-call]
            for model in models
            for parameter in model.parameters()
            if parameter.requires_grad
        ]

    def take(self) -> Readback | None:
        """The share in the window that just ended, on its way to the host; forgets the window.

        Syncs: no; reading it waits for that window.
        """
        counts, self._counts = list(self._counts.values()), {}
        size = sum(numel for _, numel in counts)
        if not size:
            return None
        device = counts[0][0].device
        non_zero = torch.stack([count.to(device) for count, _ in counts]).sum()
        return Readback((1.0 - non_zero.double() / size).reshape(1))

    def remove(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()

    @leaves_gradients_alone
    def _count(self, parameter: Tensor) -> None:
        if parameter.grad is not None:
            values = values_of(parameter.grad)
            self._counts[id(parameter)] = (torch.count_nonzero(values), values.numel())
