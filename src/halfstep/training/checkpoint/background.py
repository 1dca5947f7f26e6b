"""Saves that go on while the run does: one at a time, from a copy of everything.

The copy is made before `save_checkpoint` returns, so that what is written is one moment of the run.
Several ranks write through a process group of their own, because the collectives of a save must not
mix with those of training.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from halfstep.training.engine.engine import Engine
from halfstep.update.ranks.ranks import Ranks
from halfstep.update.ranks.shards import like, local_of


class PendingSave:
    """A save in the background.

    Args:
        write: Does it.
    """

    def __init__(self, write: Callable[[], None]) -> None:
        self._write = write
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="halfstep save", daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """Whether the checkpoint is there, or the save has failed."""
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Wait for its end.

        Raises:
            BadValueError: It has failed; said once.
        """
        self._thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self) -> None:
        try:
            self._write()
        except BaseException as error:
            self._error = error


_pending: weakref.WeakKeyDictionary[Engine, PendingSave] = weakref.WeakKeyDictionary()
_groups: weakref.WeakKeyDictionary[Engine, Any] = weakref.WeakKeyDictionary()


def wait_for_save(engine: Engine) -> None:
    """Wait for the engine's save in the background, if there is one.

    Raises:
        BadValueError: It has failed.
    """
    pending = _pending.pop(engine, None)
    if pending is not None:
        pending.wait()


def in_the_background(engine: Engine, write: Callable[[], None]) -> PendingSave:
    """Start to write; the one before must be over.

    Args:
        engine: Whose checkpoint it is.
        write: Called in a thread.
    """
    _pending[engine] = pending = PendingSave(write)
    return pending


def own_group(engine: Engine) -> Ranks:
    """The ranks of an engine with a process group for saves alone; made once, by all together."""
    ranks = engine.ranks
    if not ranks.are_several:
        return ranks
    if engine not in _groups:
        members = torch.distributed.get_process_group_ranks(ranks.group)
        _groups[engine] = torch.distributed.new_group(members, backend="gloo")
    return dataclasses.replace(ranks, group=_groups[engine])


def copied(value: Any) -> Any:
    """Dicts, lists and tuples with a copy of every tensor, of a sharded one of this rank's part.

    Syncs: yes.
    """
    if isinstance(value, Tensor):
        return like(value, local_of(value.detach()).to("cpu", copy=True))
    if isinstance(value, dict):
        copy = type(value)() if type(value) is not dict else {}
        copy.update((key, copied(each)) for key, each in value.items())
        return copy
    if type(value) in (list, tuple):
        return type(value)(copied(each) for each in value)
    return value


@atexit.register
def _finish() -> None:
    """A process that ends waits for what it is still writing."""
    for pending in list(_pending.values()):
        with contextlib.suppress(Exception):
            pending.wait()
