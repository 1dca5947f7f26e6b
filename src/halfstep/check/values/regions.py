"""Parts of models: which parameters an optimizer has, and whether a clip is about them.

A region is a model, or a `Part` of one that was reached by names and indices (``net.encoder``,
``net[0]``) or picked by a condition (``[p for p in net.parameters() if p.ndim == 2]``).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple

Step = tuple[str, str]
Models = frozenset[Hashable]
NAME, AT, SOME = "name", "at", "some"
ANYTHING = ("anything",)  # a model that was given to something nobody knows: perhaps it is in it
_WRAPPERS = frozenset(["module", "_orig_mod"])  # the model itself, in DDP and torch.compile


class Part(NamedTuple):
    """A part of a model.

    Attributes:
        root: The model.
        path: How the part is reached: by a name, at a place, or as some of it.
    """

    root: Hashable
    path: tuple[Step, ...]


def region(root: Hashable, path: tuple[Step, ...]) -> Hashable:
    """The model, or its part at the end of `path`."""
    return Part(root, path) if path else root


def deeper(path: tuple[Step, ...], kind: str, text: str) -> tuple[Step, ...]:
    """`path` and one step more."""
    return path if kind == NAME and text in _WRAPPERS else (*path, (kind, text))


def some(of: Iterable[Hashable], text: str) -> Models:
    """Those parameters of `of` that a condition picks; the same text picks the same."""
    apart = map(_taken_apart, of)
    return frozenset(Part(root, (*path, (SOME, text))) for root, path in apart)


def is_some(of: Hashable) -> bool:
    """Whether a region is picked by a condition: perhaps it is nothing at all."""
    return isinstance(of, Part) and of.path[-1][0] == SOME


def roots(of: Iterable[Hashable]) -> Models:
    """The models that regions belong to."""
    return frozenset(r.root if isinstance(r, Part) else r for r in of)


def overlap(one: Hashable, other: Hashable) -> bool | None:
    """Whether two regions have parameters in common; ``None`` if nobody knows."""
    if one == other:
        return True
    (root, path), (other_root, other_path) = _taken_apart(one), _taken_apart(other)
    if root != other_root:
        return False
    for (kind, text), (other_kind, other_text) in zip(path, other_path, strict=False):
        if (kind, text) != (other_kind, other_text):
            return False if kind == other_kind != SOME else None
    return True  # one holds the other


def _taken_apart(of: Hashable) -> tuple[Hashable, tuple[Step, ...]]:
    return (of.root, of.path) if isinstance(of, Part) else (of, ())
