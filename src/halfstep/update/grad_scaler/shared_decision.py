"""Which processes the drop-in decides with, although it knows optimizers and no models."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from halfstep.records import BadValueError
from halfstep.update.optimizers.gradients import Gradients
from halfstep.update.optimizers.square_sums import SquareSums
from halfstep.update.ranks.find import find_ranks, is_ddp, num_processes
from halfstep.update.ranks.ranks import ONE, Ranks
from halfstep.update.ranks.shards import has_dtensors
from halfstep.update.readback import Number
from halfstep.update.step.exchange import exchange_norm


class SharedDecision:
    """One optimizer's view of the other ranks.

    Sharded gradients differ between them, so that the norm is exchanged at each step. Those of
    DistributedDataParallel are the same everywhere: loss scales that were equal once stay equal,
    and that is looked at in the first step.

    Args:
        parameters: Of the optimizer.

    Raises:
        BadValueError: Flat parameters of FullyShardedDataParallel.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.ranks: Ranks = ONE
        self.is_sharded = False
        self._square_sums = SquareSums()
        self._known: tuple[list[tuple[int, int]], Number] | None = None
        self._is_checked = False
        if num_processes() == 1:
            return
        _refuse_flat(parameters)
        named = [(f"of shape {tuple(p.shape)}", p) for p in parameters]
        self.is_sharded = has_dtensors(parameters)
        if self.is_sharded or (wrappers := _wrappers_of(parameters)):
            modules = () if self.is_sharded else wrappers
            self.ranks = find_ranks(modules, named, parameters[0].device, is_whole=False)

    def check_scales(self, tell: Callable[[], list[float]]) -> None:
        """Refuse to go on with other loss scales than other ranks; once, and after `forget`.

        Args:
            tell: Gives the numbers that must be the same everywhere, the scale first.

        Raises:
            BadValueError: On all ranks alike.

        Syncs: the first time.
        """
        if self._is_checked or not self.ranks.are_several:
            return
        self._is_checked = True
        told = tell()
        largest = self.ranks.largest([*told, *(-number for number in told)])
        if any(high != -low for high, low in zip(largest, largest[len(told) :], strict=False)):
            raise BadValueError(
                "the loss scales of the processes differ (from"
                f" {-largest[len(told)]:g} to {largest[0]:g}, or what they have learnt): each would"
                " unscale the same gradients by another factor. Build the scaler with the same"
                " settings and load the same state on every process."
            )

    def forget(self) -> None:
        """A state was loaded: look at the scales again."""
        self._is_checked = False

    def norm(self, gradients: Gradients) -> Number:
        """The norm over all ranks; exchanged again only where gradients have changed since.

        Args:
            gradients: The parts on this rank.

        Syncs: as `exchange_norm`.
        """
        seen = [(id(grad), grad._version) for grad in gradients.grads]
        if self._known is None or self._known[0] != seen:
            squares = self._square_sums(gradients, self.ranks)
            self._known = seen, exchange_norm(squares, self.ranks)
        return self._known[1]

    def window_closes(self) -> None:
        """Gradients of the next window may have the addresses of these."""
        self._known = None

    def any_found(self, flag: Tensor) -> Tensor:
        """1 if a flag is 1 on any rank, in its place and dtype.

        Syncs: as `exchange_norm`.
        """
        total = self.ranks.sum(flag.double().reshape(1).to(self.ranks.device))
        return flag.copy_((total[0] > 0).to(flag.dtype))


def _wrappers_of(parameters: Sequence[Tensor]) -> list[Any]:
    held = {id(p) for p in parameters}
    found: list[Any] = [each for each in gc.get_objects() if issubclass(type(each), nn.Module)]
    return [
        module
        for module in found
        if is_ddp(module) and any(id(p) in held for p in module.parameters())
    ]


def _refuse_flat(parameters: Sequence[Tensor]) -> None:
    for p in parameters:
        if hasattr(p, "_fsdp_flattened"):
            raise BadValueError(
                f"the parameter of shape {tuple(p.shape)} is in a flat one of"
                " FullyShardedDataParallel, which does not say which part of it a process holds;"
                " use torch.distributed.fsdp.fully_shard (FSDP2), or keep torch's"
                " ShardedGradScaler."
            )
