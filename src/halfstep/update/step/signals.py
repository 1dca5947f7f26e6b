"""`SignalsWait`: Ctrl-C between a step's first moved weight and its last counter must wait."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # below `signal`, which makes an enum a call
import signal
import threading
from typing import Any

_WAITING = (int(signal.SIGINT), int(signal.SIGTERM))
_main_thread = threading.main_thread().ident


class SignalsWait:
    """A context after which the Python handlers of SIGINT and SIGTERM run, instead of inside it.

    Their exception may otherwise be raised after any bytecode: when the weights have moved, and
    counters and schedule have not. Python runs handlers in the main thread only; in others, and for
    signals without a Python handler, nothing is done. It takes about one microsecond.
    """

    __slots__ = ("_came", "_handlers")

    def __init__(self) -> None:
        self._came: list[tuple[int, Any]] = []
        self._handlers: list[tuple[int, Any]] = []

    def __enter__(self) -> None:
        if threading.get_ident() != _main_thread:
            return
        for number in _WAITING:
            handler = _signal.getsignal(number)
            if callable(handler):
                self._handlers.append((number, handler))
                _signal.signal(number, self._note)

    def __exit__(self, *error: object) -> None:
        handlers, self._handlers = self._handlers, []
        for number, handler in handlers:
            _signal.signal(number, handler)
        if self._came:
            came, self._came = self._came, []
            for arrived, frame in came:
                dict(handlers)[arrived](arrived, frame)

    def _note(self, number: int, frame: Any) -> None:
        self._came.append((number, frame))
