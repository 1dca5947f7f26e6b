"""`Ranks`: the processes that train together, and the collectives between them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from halfstep.update.ranks.peers import Peers
from halfstep.update.ranks.shards import is_dtensor, num_shards
from halfstep.update.readback import Number

SquareSum = Callable[[Sequence[Tensor]], Number]


@dataclass(frozen=True, eq=False)
class Ranks:
    """Who trains together.

    Attributes:
        size, rank: As in `torch.distributed`.
        group: Its process group; ``None`` for a process of its own.
        device: Where the exchanged numbers live; that of the parameters.
        averaged_over: What the exchange of gradients has divided them by already.
        copies_of_data: How many ranks see the same batch (tensor parallelism), so that losses and
            divisors count once.
        square_sum: Replaces the square sum of the gradients that this rank owns, for parameters
            that are spread in a way that torch's tensors do not say (pipeline parallelism).
        peers: What ranks tell each other when one fails.
    """

    size: int = 1
    rank: int = 0
    group: Any = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    averaged_over: float = 1.0
    copies_of_data: float = 1.0
    square_sum: SquareSum | None = None
    peers: Peers = field(default_factory=Peers)

    @property
    def are_several(self) -> bool:
        """Whether there is anybody to agree with."""
        return self.size > 1

    def copies_of(self, parameter: Tensor) -> float:
        """How many ranks hold the same part of a parameter; 0 for a plain one, which all hold.

        A sharded parameter may be replicated over other dimensions of its mesh, or over ranks that
        its mesh does not have.
        """
        return self.size / num_shards(parameter) if is_dtensor(parameter) else 0.0

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all ranks, in place; bit-equal on all of them.

        Args:
            values: 1-D float64 on `device`, of the same length on every rank.
        """
        with self.together():
            torch.distributed.all_reduce(values, group=self.group)
        return values

    def largest(self, values: Sequence[float]) -> list[float]:
        """For each number the largest over all ranks.

        Syncs: yes.
        """
        if not self.are_several:
            return list(values)
        there = torch.tensor(values, dtype=torch.float64, device=self.device)
        with self.together():
            torch.distributed.all_reduce(there, torch.distributed.ReduceOp.MAX, group=self.group)
        found: list[float] = there.tolist()
        return found

    def gather(self, thing: Any) -> list[Any]:
        """What every rank has, by rank; pickled. For errors and reports, never for a step.

        Syncs: yes.
        """
        if not self.are_several:
            return [thing]
        found: list[Any] = [None] * self.size
        with self.together():
            torch.distributed.all_gather_object(found, thing, group=self.group)
        return found

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Around what all ranks do at the same time: a failure of another one is named.

        Raises:
            PeerFailed: Another rank has failed, or is gone.
        """
        try:
            yield
        except RuntimeError as error:
            if self.are_several:
                self.peers.explain(error)
            raise


ONE = Ranks()
