"""Micro-batches, grouped into the windows of one update each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeVar

from torch import Tensor

from halfstep.records import BadTypeError, BadValueError

T = TypeVar("T")


class Window(list[T]):
    """A list that says of itself: each of my elements is a micro-batch of one update.

    `micro_batches` yields windows. A window that is put together by hand needs the word only where
    a plain list could as well be one batch, as DataLoader makes it: a list of tensors, of texts,
    or of elements that are not all of one kind. A slice of a window is a plain list.

    Args:
        batches: The micro-batches.

    Example:
        >>> import halfstep as hs
        >>> hs.Window(batch for batch in "abc")
        Window(['a', 'b', 'c'])
    """

    __slots__ = ()

    def __init__(self, batches: Iterable[T] = ()) -> None:
        super().__init__(batches)

    def __repr__(self) -> str:
        return f"Window({super().__repr__()})"


def micro_batches(
    loader: Iterable[T], per_update: int, *, drop_last: bool = False
) -> Iterator[Window[T]]:
    """Group a loader's batches into windows of `per_update`.

    Args:
        loader: Any iterable of batches.
        per_update: Micro-batches per update, at least 1.
        drop_last: Leave out a last window that is shorter. With `LossSum` a shorter window is
            exact; with mean losses its micro-batches weigh more.

    Yields:
        Windows for `Engine.train_step`: lists of batches.

    Raises:
        BadValueError: `per_update` is less than 1.

    Example:
        >>> import halfstep as hs
        >>> list(hs.micro_batches([1, 2, 3], per_update=2))
        [Window([1, 2]), Window([3])]
    """
    if isinstance(per_update, bool) or not isinstance(per_update, int) or per_update < 1:
        raise BadValueError(f"per_update must be a whole number of at least 1, got {per_update!r}.")
    return _grouped(iter(loader), per_update, drop_last)


def _grouped(batches: Iterator[T], per_update: int, drop_last: bool) -> Iterator[Window[T]]:
    while window := Window(islice(batches, per_update)):
        if len(window) == per_update or not drop_last:
            yield window


def checked_window(window: Iterable[T]) -> Iterable[T]:
    """The micro-batches of a window.

    Refused is what could as well be one batch, or a whole loader: going through it would be
    silently wrong.

    Args:
        window: What `train_step` was given.

    Raises:
        BadTypeError: It is no list and no iterator, or a list that looks like one batch.
    """
    if isinstance(window, Window):
        _refuse_windows(window)
        return window
    if isinstance(window, list):
        _refuse_windows(window)
        if _may_be_one_batch(window):
            kinds = [type(part).__name__ for part in window[:3]] + ["..."] * (len(window) > 3)
            raise BadTypeError(
                f"train_step got a list of {len(window)} ({', '.join(kinds)}), which looks like"
                " the parts of one batch and not like micro-batches: write"
                " train_step([batch], loss_fn) for one batch,"
                " hs.micro_batches(loader, per_update=n) for the windows of a loader, or"
                " hs.Window(batches) where each element is a micro-batch."
            )
        return window
    # an iterator that knows its length is that of a DataLoader: an epoch, not a window
    if isinstance(window, Iterator) and not hasattr(window, "__len__"):
        return _no_windows(window)
    raise BadTypeError(
        "train_step takes a list (or an iterator) of micro-batches, got"
        f" {type(window).__name__}; for a window of one batch write [batch], for the windows of a"
        " loader hs.micro_batches(loader, per_update=n), for another collection of micro-batches"
        " hs.Window(batches)."
    )


def _may_be_one_batch(batches: Sequence[object]) -> bool:
    if len(batches) < 2:
        return False
    first = batches[0]
    return any(_is_value(each) or not _are_alike(first, each) for each in batches)


def _is_value(part: object) -> bool:
    """Whether it is what a batch is made of: DataLoader makes lists of tensors and of texts."""
    return isinstance(part, (str, bytes)) or _is_array(part)


def _is_array(part: object) -> bool:
    return isinstance(part, Tensor) or hasattr(type(part), "__array__")


def _are_alike(first: object, other: object) -> bool:
    """Whether two things have the structure of two batches from one loader.

    Lengths may differ, as those of lists of images do, and keys and elements may be missing.
    """
    if first is None or other is None:
        return True
    if _is_array(first) and _is_array(other):
        return _form(first) == _form(other)
    if isinstance(first, Mapping) and isinstance(other, Mapping):
        return not first or not other or any(key in other for key in first)
    if isinstance(first, (list, tuple)) and type(first) is type(other):
        return all(map(_are_alike, first, other))
    if isinstance(first, (int, float)) and isinstance(other, (int, float)):
        return True
    return type(first) is type(other)


def _form(array: object) -> tuple[object, int]:
    """Images and labels differ in it, images and images do not."""
    return getattr(array, "dtype", None), len(getattr(array, "shape", ()))


def _no_windows(batches: Iterator[T]) -> Iterator[T]:
    for batch in batches:
        _refuse_windows([batch])
        yield batch


def _refuse_windows(batches: Sequence[object]) -> None:
    if any(isinstance(batch, Window) for batch in batches):
        raise BadTypeError(
            "train_step got a window inside of a window; it takes one window at a time: write"
            " train_step(window, loss_fn) for each window of hs.micro_batches(...)."
        )
