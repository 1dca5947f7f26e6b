"""What `max_norm` and `clip` may be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from halfstep.records import BadTypeError, BadValueError

Clip = Callable[[list[Tensor]], object]


@dataclass(frozen=True)
class Joint:
    """One norm over the gradients of all optimizers that step together, instead of one each.

    Args:
        max_norm: Limit of that norm.

    Example:
        >>> import halfstep as hs
        >>> hs.Joint(1.0)
        Joint(max_norm=1.0)
    """

    max_norm: float

    def __post_init__(self) -> None:
        check_max_norm(self.max_norm)


def check_max_norm(max_norm: object) -> None:
    """Refuse a limit that is not a positive number."""
    if isinstance(max_norm, Joint):
        raise BadTypeError("max_norm=hs.Joint(...) is for all optimizers; it goes into no mapping.")
    if isinstance(max_norm, bool) or not isinstance(max_norm, (int, float)):
        raise BadTypeError(f"max_norm must be a number, got {type(max_norm).__name__}.")
    if not max_norm > 0:
        raise BadValueError(
            f"max_norm must be > 0, got {max_norm}; every update would be 0. Use None to not clip."
        )


def check_clip(clip: object, max_norm: object) -> None:
    """Refuse a `clip` that cannot be called, or that comes beside a `max_norm`."""
    if clip is None:
        return
    if max_norm is not None:
        raise BadValueError(
            "max_norm and clip are two ways to clip; give one of them. A clip callable receives"
            " the parameters with their true gradients."
        )
    if not callable(clip):
        raise BadTypeError(f"clip must be a callable, got {type(clip).__name__}.")
