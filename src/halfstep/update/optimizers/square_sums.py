"""`SquareSums`: the part of a gradient norm that one of several ranks knows."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from halfstep.update.optimizers.gradients import Gradients
from halfstep.update.optimizers.norm import GradientNorm
from halfstep.update.ranks.ranks import Ranks
from halfstep.update.readback import Number


class Squares(NamedTuple):
    """Square sums of this rank's gradients.

    Attributes:
        owned: Of what this rank holds alone; parts that several ranks hold count by their share.
        shared: Of what all ranks hold alike.
    """

    owned: Number
    shared: Number

    @property
    def are_known(self) -> bool:
        """Whether the host knows both."""
        return not any(isinstance(part, Tensor) for part in self)


class SquareSums:
    """Reads the gradients of one optimizer."""

    def __init__(self) -> None:
        self._norms: dict[float, GradientNorm] = {}  # by how many ranks hold the same parts

    def __call__(self, gradients: Gradients, ranks: Ranks) -> Squares:
        """One read of the gradients.

        Args:
            gradients: The parts on this rank.
            ranks: Several.

        Syncs: no.
        """
        params, grads, _ = gradients
        if ranks.square_sum is not None:
            return Squares(ranks.square_sum(grads), 0.0)
        by_copies: dict[float, list[Tensor]] = {}
        for p, grad in zip(params, grads, strict=True):
            by_copies.setdefault(ranks.copies_of(p), []).append(grad)
        owned: Number = 0.0
        shared: Number = 0.0
        for copies, some in by_copies.items():
            norm = self._norms.setdefault(copies, GradientNorm())(some, key=params)
            if copies:
                owned = owned + norm * norm / copies
            else:
                shared = norm * norm
        return Squares(owned, shared)
