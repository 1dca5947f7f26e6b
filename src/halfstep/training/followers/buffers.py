"""``buffers="rollback"``: module buffers as they were before a window that was skipped."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class BufferRollback:
    """Copies of a model's buffers (BatchNorm's statistics) from before the open window.

    The forward pass moves them, so a NaN batch would leave NaN in them although its update was
    skipped.

    Args:
        model: Its buffers are looked up anew at every call, so that loading and moving is fine.

    Attributes:
        is_open: Whether `restore` would put something back.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._copies: list[Tensor] = []
        self.is_open = False

    @torch.no_grad()
    def remember(self) -> None:
        """Copy the buffers as they are now; a few operations for each dtype.

        Syncs: no.
        """
        buffers = list(self._model.buffers())
        if not self._fits(buffers):
            self._copies = [buffer.detach().clone() for buffer in buffers]
        else:
            for copies, present in self._by_kind(buffers):
                torch._foreach_copy_(copies, present)
        self.is_open = True

    def forget(self) -> None:
        """The window is over: `restore` does nothing until the next `remember`."""
        self.is_open = False

    @torch.no_grad()
    def restore(self, found_inf: float | Tensor = 1.0) -> None:
        """Put the copies back; a few operations for each dtype.

        Args:
            found_inf: A number, or a 0-d tensor on an accelerator where the host does not know
                yet whether the window is skipped; 0 keeps the buffers.

        Syncs: no.
        """
        buffers = list(self._model.buffers())
        if not self.is_open or not self._fits(buffers):
            return  # nothing was remembered, or the model was changed since
        if not isinstance(found_inf, Tensor) and not found_inf:
            return
        # A graph that is still to be used (a GAN's generator) has saved the buffers, though its
        # backward does not read them: autograd must not take this for a change of its inputs.
        with torch.autograd.grad_mode._unsafe_preserve_version_counter(tuple(buffers)):
            for copies, present in self._by_kind(buffers):
                if isinstance(found_inf, Tensor):
                    # side by side, because no operation on a list chooses by a condition
                    old, new = (
                        torch.cat([x.reshape(-1) for x in each]) for each in (copies, present)
                    )
                    chosen = torch.where(found_inf.to(old.device) > 0, old, new)
                    parts = torch.split(chosen, [x.numel() for x in present])
                    copies = [part.view(x.shape) for part, x in zip(parts, present, strict=True)]
                torch._foreach_copy_(present, copies)

    def _by_kind(self, buffers: Sequence[Tensor]) -> list[tuple[list[Tensor], list[Tensor]]]:
        """Copies and buffers of one device and dtype together."""
        kinds: dict[object, tuple[list[Tensor], list[Tensor]]] = {}
        for copy, buffer in zip(self._copies, buffers, strict=True):
            copies, present = kinds.setdefault((buffer.device, buffer.dtype), ([], []))
            copies.append(copy)
            present.append(buffer)
        return list(kinds.values())

    def _fits(self, buffers: list[Tensor]) -> bool:
        return [(b.shape, b.dtype, b.device) for b in buffers] == [
            (c.shape, c.dtype, c.device) for c in self._copies
        ]
