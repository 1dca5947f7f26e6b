"""`Peers`: what ranks tell each other when one fails.

A rank that raises leaves the collectives of the others without a partner: they wait until its
process ends or the group's timeout is over, and then only know that a connection was closed. So a
rank that fails writes its sentence into the store of the process group first, and the others read
it there.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import weakref
from typing import Any

import torch

from halfstep.records import PeerFailed

logger = logging.getLogger("halfstep")

_KEY = "halfstep/failed"


class Peers:
    """The other ranks of a run.

    Args:
        rank: Of this process; ``None`` for a process of its own, which has none.
    """

    def __init__(self, rank: int | None = None) -> None:
        self._rank = rank
        self._has_told = False
        if rank is not None:
            _listen(self)

    def tell(self, error: BaseException) -> None:
        """Let the others know that this rank fails; the first failure counts."""
        if self._rank is None or self._has_told or isinstance(error, PeerFailed):
            return
        self._has_told = True
        text = f"{type(error).__name__}: {error}"
        with contextlib.suppress(Exception):  # the store may be gone with its process
            if not _store().check([_KEY]):
                _store().set(_KEY, f"{self._rank}\n{text}")

    def failure(self) -> tuple[int, str] | None:
        """Rank and sentence of another rank that has failed, if one has said so."""
        if self._rank is None:
            return None
        with contextlib.suppress(Exception):
            if _store().check([_KEY]):
                rank, _, text = _store().get(_KEY).decode().partition("\n")
                return None if int(rank) == self._rank else (int(rank), text)
        return None

    def explain(self, error: BaseException) -> None:
        """Raise in words what a collective that broke stands for.

        Raises:
            PeerFailed: Another rank has said why it failed, or its connection was closed.
        """
        if isinstance(error, PeerFailed):
            raise error
        found = self.failure()
        if found is not None:
            rank, text = found
            raise PeerFailed(
                f"rank {rank} failed, and this one cannot go on without it. Its error: {text}", rank
            ) from error
        text = str(error).lower()
        if any(sign in text for sign in _GONE):
            raise PeerFailed(
                "another rank of the process group is gone or did not answer in time, and this one"
                " cannot go on without it; look at its own output (it may have been killed, for"
                f" memory above all). torch said: {_first_line(error)}"
            ) from error
        return


# --- errors that end the process outside of the engine -----------------------------------------

_listening: weakref.WeakSet[Peers] = weakref.WeakSet()
_hook_before: Any = None


def _listen(peers: Peers) -> None:
    """Let the others hear of an error of the user's loop as well, which nobody catches."""
    global _hook_before
    _listening.add(peers)
    if sys.excepthook is not _tell_all:
        _hook_before, sys.excepthook = sys.excepthook, _tell_all


def _tell_all(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    for peers in list(_listening):
        found = None if isinstance(error, PeerFailed) else peers.failure()
        if found is not None:
            logger.error("rank %d has failed before this one, with %s", *found)
        peers.tell(error)
    _hook_before(kind, error, trace)


_GONE = ("connection closed by peer", "connection reset", "timed out", "timeout", "broken pipe")


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def _store() -> Any:
    return torch.distributed.distributed_c10d._get_default_store()
