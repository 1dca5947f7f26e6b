"""Micro-batches, grouped into the windows of one update each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

from halfstep.records import BadTypeError, BadValueError

T = TypeVar("T")


def micro_batches(
    loader: Iterable[T], per_update: int, *, drop_last: bool = False
) -> Iterator[list[T]]:
    """Group a loader's batches into lists of `per_update`.

    Args:
        loader: Any iterable of batches.
        per_update: Micro-batches per update, at least 1.
        drop_last: Leave out a last window that is shorter. With `LossSum` a shorter window is
            exact; with mean losses its micro-batches weigh more.

    Yields:
        Lists of batches for `Engine.train_step`.

    Raises:
        BadValueError: `per_update` is less than 1.

    Example:
        >>> import halfstep as hs
        >>> list(hs.micro_batches([1, 2, 3], per_update=2))
        [[1, 2], [3]]
    """
    if isinstance(per_update, bool) or not isinstance(per_update, int) or per_update < 1:
        raise BadValueError(f"per_update must be a whole number of at least 1, got {per_update!r}.")
    return _grouped(iter(loader), per_update, drop_last)


def _grouped(batches: Iterator[T], per_update: int, drop_last: bool) -> Iterator[list[T]]:
    while window := list(islice(batches, per_update)):
        if len(window) == per_update or not drop_last:
            yield window


def checked_window(window: object) -> Iterable[object]:
    """Refuse what could as well be one batch: iterating over it would be silently wrong."""
    if isinstance(window, (list, Iterator)) or (
        isinstance(window, Iterable)
        and not isinstance(window, (tuple, dict, str, bytes))
        and not hasattr(window, "shape")
    ):
        return window
    raise BadTypeError(
        f"train_step takes a list (or an iterator) of micro-batches, got {type(window).__name__};"
        " for a window of one batch write [batch]."
    )
