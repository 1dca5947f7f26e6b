"""From names of optimizers to their lanes."""

from __future__ import annotations

from collections.abc import Sequence

from torch.optim import Optimizer

from halfstep.records import BadValueError, CallOrderError
from halfstep.training.named import check_name
from halfstep.update import Lane

Names = str | Sequence[str] | None


def named_lanes(lanes: Sequence[Lane], names: Names) -> list[Lane]:
    """The named ones, in the engine's order; ``None`` for all.

    Raises:
        BadValueError: An unknown name, or none at all.
        BadTypeError: No name but an object.
    """
    if names is None:
        return list(lanes)
    wanted = [names] if isinstance(names, (str, Optimizer)) else list(names)
    for name in wanted:
        check_name("optimizers", name, [lane.name for lane in lanes])
    if not wanted:
        raise BadValueError("optimizers is empty; name at least one, or leave it out for all.")
    return [lane for lane in lanes if lane.name in wanted]


def open_lanes(lanes: Sequence[Lane], names: Names) -> list[Lane]:
    """The named ones; without names those with an open window."""
    if names is not None:
        return named_lanes(lanes, names)
    return [lane for lane in lanes if lane.window.num_micro_batches]


def lanes_to_step(lanes: Sequence[Lane], names: Names) -> list[Lane]:
    """The same, where each must have an open window.

    Raises:
        CallOrderError: One has not, or none has.
    """
    wanted = open_lanes(lanes, names)
    closed = [lane for lane in wanted if not lane.window.num_micro_batches]
    if closed or not wanted:
        raise CallOrderError(
            f"step() without backward(): the window{of_which(closed, lanes)} has no gradients. Each"
            " step needs at least one engine.backward(loss) since the last one."
        )
    return wanted


def of_which(some: Sequence[Lane], lanes: Sequence[Lane]) -> str:
    """Names for a message; nothing where there is only one optimizer."""
    if len(lanes) == 1 or not some:
        return ""
    return f" of {', '.join(repr(lane.name) for lane in some)}"
