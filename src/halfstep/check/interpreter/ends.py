"""Ways in which a block of the program ends before its last statement."""

from __future__ import annotations

from halfstep.check.values.base import Value


class PathEnded(Exception):  # noqa: N818 - the normal end of a path that grew too long
    """The path has run long enough; what it did so far counts."""


class Silent(Exception):  # noqa: N818 - not an error either
    """A framework does the work on this path: nothing can be said about it."""


class Raised(Exception):  # noqa: N818 - of the program that is read
    """A ``raise`` on its way to a handler."""


class Returned(Exception):  # noqa: N818
    """A ``return`` on its way to the call."""

    def __init__(self, value: Value) -> None:
        self.value = value


class LoopLeft(Exception):  # noqa: N818
    """A ``break``."""


class LoopContinued(Exception):  # noqa: N818
    """A ``continue``."""


LEAVES = (Returned, LoopLeft, LoopContinued, Raised)
