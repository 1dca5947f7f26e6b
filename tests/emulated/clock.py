"""What the host and the emulated device have done: waits, launches, work that is in flight.

The device is one queue. Work that the host has not waited for is in flight: a copy into pinned
memory then has not arrived. An operation that makes the host wait lets everything arrive, an event
lets arrive what was queued before it was recorded.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

_HERE = str(Path(__file__).parent)
_TORCH = str(Path(torch.__file__).parent)
_WARNING = "called a synchronizing CUDA operation"


class Wait(NamedTuple):
    """The host waited for the device.

    Attributes:
        kind: Name of the operation, or what it was.
        place: File and line in the source, the first frame outside of torch.
    """

    kind: str
    place: str


class Counts:
    """What happened on the emulated device since the last `clear`.

    Attributes:
        waits: Each wait of the host until the device has done everything that was queued.
        events: Each wait for an event: until the device has done what was queued before it.
        ops: Launched operations by name; views and memory without contents launch nothing.
        kernels: Keyword arguments of each fused optimizer kernel.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.waits: list[Wait] = []
        self.events: list[Wait] = []
        self.ops: Counter[str] = Counter()
        self.kernels: list[Mapping[str, Any]] = []


class Clock:
    """The queue of the device, and the counts.

    Attributes:
        counts: For the test.
        debug_mode: Of ``torch.cuda.set_sync_debug_mode``: 0, 1 (warn) or 2 (error).
    """

    def __init__(self) -> None:
        self.counts = Counts()
        self.restart()

    def restart(self) -> None:
        self.counts.clear()
        self.debug_mode = 0
        self._queued = 0
        self._in_flight: list[tuple[int, Callable[[], object]]] = []

    def launch(self, name: str) -> None:
        self.counts.ops[name] += 1

    def queue(self, arrive: Callable[[], object]) -> None:
        """Work whose effect the host sees once it has waited."""
        self._queued += 1
        self._in_flight.append((self._queued, arrive))

    def now(self) -> int:
        """The number of the last queued work."""
        return self._queued

    def is_over(self, until: int | None = None) -> bool:
        """Whether nothing queued up to `until` is in flight; what is arrives before the next call.

        A poll therefore says no once, as one that comes too early does.
        """
        was_over = not any(number <= self._limit(until) for number, _ in self._in_flight)
        self._arrive(until)
        return was_over

    def wait(self, kind: str, *, seen_by_debug_mode: bool = True) -> None:
        """The host waits for everything.

        Args:
            kind: For `Wait.kind`.
            seen_by_debug_mode: Whether torch's sync debug mode notices: not when the whole device
                is waited for, nor copies that are asked not to block.
        """
        self.counts.waits.append(Wait(kind, _place()))
        if seen_by_debug_mode and self.debug_mode == 2:
            raise RuntimeError(_WARNING)
        if seen_by_debug_mode and self.debug_mode == 1:
            warnings.warn(_WARNING, UserWarning, stacklevel=2)
        self._arrive(None)

    def wait_for_event(self, recorded_at: int) -> None:
        """The host waits for what was queued before an event; no debug mode of torch sees it."""
        self.counts.events.append(Wait("event", _place()))
        self._arrive(recorded_at)

    def _limit(self, until: int | None) -> int:
        return self._queued if until is None else until

    def _arrive(self, until: int | None) -> None:
        limit = self._limit(until)
        arriving = [arrive for number, arrive in self._in_flight if number <= limit]
        self._in_flight = [each for each in self._in_flight if each[0] > limit]
        for arrive in arriving:
            arrive()


CLOCK = Clock()


class Event:
    """``torch.Event`` and ``torch.cuda.Event``; reading one that was not recorded is an error."""

    def __init__(self, device: object = None, **options: object) -> None:
        self._recorded_at: int | None = None

    def record(self, stream: object = None) -> None:
        self._recorded_at = CLOCK.now()

    def synchronize(self) -> None:
        CLOCK.wait_for_event(self._checked())

    def query(self) -> bool:
        return CLOCK.is_over(self._checked())

    def elapsed_time(self, end: Event) -> float:
        self._checked()
        end._checked()
        return 1.0

    def _checked(self) -> int:
        if self._recorded_at is None:
            raise RuntimeError("this event was never recorded; CUDA would wait for nothing")
        return self._recorded_at


class Stream:
    """The only stream of the device."""

    def __init__(self, device: object = None, **options: object) -> None: ...

    def synchronize(self) -> None:
        CLOCK.wait("stream")

    def query(self) -> bool:
        return CLOCK.is_over()

    def wait_stream(self, stream: object) -> None: ...

    def wait_event(self, event: Event) -> None:
        event._checked()

    def record_event(self, event: Event | None = None) -> Event:
        found = event or Event()
        found.record()
        return found

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None: ...


def _place() -> str:
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((_HERE, _TORCH)):
            return f"{Path(name).name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "?"
