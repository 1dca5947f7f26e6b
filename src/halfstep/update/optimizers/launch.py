"""Launching the kernels of one update together: all of them run, or none."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

_call_of = operator.attrgetter("call")


class Launch(NamedTuple):
    """A call that is ready to run: nothing is left to allocate.

    Attributes:
        call: Runs it.
        undo: Takes it back; ``None`` for a kernel that moves weights.
    """

    call: Callable[[], object]
    undo: Callable[[], Any] | None = None


class TornUpdateError(RuntimeError):
    """Some kernels of an update have run and others could not; its cause says why."""


def launch_all(launches: Sequence[Launch]) -> BaseException | None:
    """Run every launch, those that can be taken back first.

    Where one raises before a weight has moved, the others are taken back. Where a weight has moved
    the rest is launched once more, because nothing takes a kernel back.

    Returns:
        What a launch raised although all have run in the end; the caller raises it once the step is
        committed. ``None`` if nothing went wrong.

    Raises:
        BaseException: What the launch raised; nothing has moved.
        TornUpdateError: A part has moved.

    Syncs: no.
    """
    ordered = sorted(launches, key=lambda launch: launch.undo is None)
    left = iter(ordered)
    try:
        _run(left)
    except BaseException as error:
        failed = len(ordered) - len(list(left)) - 1  # the kernels count no versions of tensors
        ran = ordered[:failed]
        if all(launch.undo is not None for launch in ran):
            for launch in ran:
                assert launch.undo is not None
                launch.undo()
            raise
        try:
            _run(iter(ordered[failed:]))
        except BaseException:
            raise TornUpdateError from error
        return error
    return None


def _run(launches: Iterator[Launch]) -> None:
    """In one call that no bytecode of Python interrupts: no signal comes between two kernels."""
    deque(map(operator.call, map(_call_of, launches)), maxlen=0)
