"""Cases in order of value within a budget of minutes, and what became of each.

A case that needs what is not there says so and is left out. A case that fails does not take the
figures of the others with it. When the minutes are over, the case that is running is stopped and
the others are named as left out.
"""

from __future__ import annotations

import contextlib
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

Clock = Callable[[], float]
Row = dict[str, Any]  # a number, [lower quartile, median, upper quartile], a text, or None


class LeftOut(Exception):  # noqa: N818  # no error of the program
    """A case cannot be measured here, and why, in one sentence."""


class OutOfTime(BaseException):
    """The budget is used up; no `except Exception` on the way may swallow this."""


@dataclass
class Measured:
    """What a case found.

    Attributes:
        rows: By name, each a value by column; a column's name ends in its unit.
        notes: One sentence each.
        failure: What must not be so, if it is so: the run then ends with exit code 1.
    """

    rows: dict[str, Row] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    failure: str | None = None


@dataclass(frozen=True)
class Case:
    """One measurement.

    Attributes:
        section: What `--only` selects.
        name: Within the section.
        run: Measures, or raises `LeftOut`.
        needs_s: Seconds without which it is not begun, because it would only be stopped.
    """

    section: str
    name: str
    run: Callable[[], Measured]
    needs_s: float = 0.0


def absent(section: str, name: str, reason: str) -> Case:
    """A case that says why it cannot be measured here."""

    def leave_out() -> Measured:
        raise LeftOut(reason)

    return Case(section, name, leave_out)


class Budget:
    """Minutes for the whole run.

    Args:
        minutes: How many.
        clock: Seconds; another one in tests.
    """

    def __init__(self, minutes: float, clock: Clock = time.monotonic) -> None:
        self.minutes = minutes
        self._clock = clock
        self._end = clock() + 60 * minutes

    def left_s(self) -> float:
        return self._end - self._clock()

    @contextlib.contextmanager
    def enforced(self) -> Iterator[None]:
        """Raise `OutOfTime` inside the block when the minutes are over (not on Windows)."""
        if not hasattr(signal, "setitimer"):
            yield
            return
        before = signal.signal(signal.SIGALRM, _raise_out_of_time)
        signal.setitimer(signal.ITIMER_REAL, max(self.left_s(), 1e-3))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def _raise_out_of_time(number: int, frame: object) -> None:
    raise OutOfTime


def run_cases(cases: Iterable[Case], budget: Budget, add: Callable[[Row], None]) -> bool:
    """Run the cases in turn.

    Args:
        cases: In order of value.
        budget: When to stop.
        add: Called with the entry of each case as soon as it is known.

    Returns:
        Whether nothing failed; what is left out has not failed.
    """
    clean = True
    for case in cases:
        begin = time.perf_counter()
        entry = _entry(case, budget)
        entry["seconds"] = round(time.perf_counter() - begin, 1)
        clean = clean and not {"error", "failure"} & entry.keys()
        add({"section": case.section, "name": case.name, **entry})
    return clean


def _entry(case: Case, budget: Budget) -> Row:
    left = budget.left_s()
    if left <= case.needs_s:
        wanted = f", and it takes about {case.needs_s:.0f}" if case.needs_s else ""
        return {"left_out": f"{max(left, 0):.0f} of {60 * budget.minutes:.0f} s are left{wanted}"}
    try:
        with budget.enforced():
            measured = case.run()
    except OutOfTime:
        return {"left_out": f"stopped when the {budget.minutes:g} minutes were over"}
    except LeftOut as reason:
        return {"left_out": str(reason)}
    except torch.OutOfMemoryError as error:
        return {"left_out": f"out of memory: {str(error).splitlines()[0]}"}
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}
    entry: Row = {"rows": measured.rows}
    if measured.notes:
        entry["notes"] = measured.notes
    if measured.failure:
        entry["failure"] = measured.failure
    return entry
