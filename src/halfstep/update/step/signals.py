"""`signals_wait`: Ctrl-C between a step's first moved weight and its last counter must wait."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

_WAITING = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def signals_wait() -> Iterator[None]:
    """Run the Python handlers of SIGINT and SIGTERM after the block instead of inside it.

    Their exception may otherwise be raised after any bytecode: when the weights have moved, and
    counters and schedule have not. Python runs handlers in the main thread only; in others, and for
    signals without a Python handler, nothing is done. It takes about 3 microseconds.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[tuple[int, Any]] = []
    handlers: dict[signal.Signals, Callable[[int, Any], Any]] = {}
    try:
        for number in _WAITING:
            handler = signal.getsignal(number)
            if callable(handler):
                handlers[number] = handler
                signal.signal(number, lambda *arguments: came.append(arguments))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for arrived, frame in came:
            handlers[signal.Signals(arrived)](arrived, frame)
