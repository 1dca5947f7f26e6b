"""Which op made the first inf or NaN that matters, as opposed to those that handed it on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from halfstep.records import OpRecord
from halfstep.tracing.lineage import Input, Lineage
from halfstep.tracing.op_walk import OpWalk

# They place constants, -inf in attention masks above all.
_PLACES_CONSTANTS = ("full", "new_full", "full_like", "fill", "masked_fill", "where",
                     "scalar_tensor", "lift_fresh", "constant_pad_nd")  # fmt: skip


@dataclass(frozen=True)
class Producer:
    """Where a value that is not finite began.

    Attributes:
        position: Index of the result.
        leaf: Name of the weight, buffer or part of the batch that it came in with, if it did.
        is_placed: Only handed on from an inf that was put there on purpose.
        inputs: What the op was given.
    """

    position: int
    leaf: str
    is_placed: bool
    inputs: tuple[Input, ...]

    @property
    def largest_input(self) -> float:
        """Largest finite magnitude among the inputs."""
        return max((i.largest_finite for i in self.inputs), default=0.0)


def bad_starts(ops: Sequence[OpRecord], walk: OpWalk) -> set[int]:
    """The ops (by first result) with a result that is not finite: what to examine.

    Args:
        ops: Of a pass.
        walk: The pass.
    """
    return {walk.seen[op.index].first for op in ops if not op.is_finite}


def producers(examined: Lineage) -> dict[int, Producer]:
    """For every result that is not finite, where that began.

    NaN is followed before inf: an op that makes NaN of a placed -inf (the softmax of a row that is
    masked as a whole) is the producer, one that adds a mask of -inf is not.

    Args:
        examined: A pass in which `bad_starts` were examined.
    """
    found: dict[int, Producer] = {}
    for position, output in examined.outputs.items():  # in the order in which they ran
        if output.finite_fraction == 1:
            continue
        inputs = tuple(examined.inputs[examined.seen[position].first])
        here = Producer(position, "", _places(examined, position), inputs)
        nans = [i for i in inputs if i.has_nan]
        infs = [i for i in inputs if i.has_inf]
        if not output.has_nan or not nans:
            followed = [_follow(i, here, found) for i in infs]
        else:
            followed = [_follow(i, here, found) for i in nans]
        unplaced = [p for p in followed if not p.is_placed]
        if unplaced:
            found[position] = min(unplaced, key=lambda p: p.position)
        elif followed and not output.has_nan:
            found[position] = replace(here, is_placed=True)
        else:
            found[position] = here if not output.has_nan else replace(here, is_placed=False)
    return found


def first_producer(found: dict[int, Producer], ends: Sequence[int]) -> Producer | None:
    """The producer behind the first end that is not finite; without one, the earliest of all.

    Args:
        found: From `producers`.
        ends: Indices of the results that matter, in order of weight: the loss, the gradients.
    """
    for end in ends:
        if end in found and not found[end].is_placed:
            return found[end]
    real = [p for p in found.values() if not p.is_placed]
    return min(real or found.values(), key=lambda p: p.position, default=None)


def _places(examined: Lineage, position: int) -> bool:
    name = examined.seen[position].kind.name.rpartition(".")[2].strip("_")
    return name in _PLACES_CONSTANTS


def _follow(given: Input, here: Producer, found: dict[int, Producer]) -> Producer:
    """Where a bad input began."""
    origin = given.origin
    if origin.position is not None and origin.position in found:
        return found[origin.position]
    masks = not given.has_nan and given.only_negative_inf
    return replace(here, leaf=origin.leaf, is_placed=masks)
