"""Which paths through a program are followed.

A path is one run of the interpreter. Wherever it cannot know which way a condition goes, it asks
`Path.decide`; the same condition gets the same answer on the whole path. The first path takes the
main way everywhere. Further paths turn one of its decisions, then two, and so on: the plain ways
come first, and a limit cuts the odd ones. Decisions about branches in which something can happen
are turned first, each once, before the others. A turn after which the same things happen as before
is not built on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator

from halfstep.check.interpreter.ends import PathEnded, Silent
from halfstep.rules import events as ev
from halfstep.rules.events import Event

MAX_PATHS = 48
MAX_STEPS = 8000
MAX_TOTAL = 40_000  # of one entry
MAX_FILE = 48_000  # after which every entry has MAX_MINOR
MAX_MINOR = 10_000  # total after which decisions about nothing but values are not turned any more
MAX_BARREN = 8
# Kinds of event without which no rule over a training step has anything to say.
_SCALED = frozenset([ev.SCALER, ev.SCALE, ev.UNSCALE])
_TRAINS = _SCALED | {ev.BACKWARD, ev.ENGINE_BACKWARD, ev.ENGINE_STEP}
MATTERS = _TRAINS | {ev.AUTOCAST_ENTER}  # no rule over events speaks of autocast alone
_Turns = tuple[bool, ...]
_Shown = tuple[Hashable, ...]


class Path:
    """One way through the program.

    Args:
        given: The first decisions; later ones go the main way.

    Attributes:
        taken: All decisions so far.
        acting: For each of them, whether something can happen in one of its branches, and it is the
            first about these.
        events: What happened.
        num_steps: Statements executed.
        is_cut: Whether the program goes on where the path ended.
    """

    def __init__(self, given: tuple[bool, ...] = ()) -> None:
        self.taken: list[bool] = []
        self.acting: list[bool] = []
        self.events: list[Event] = []
        self._given = given
        self._known: dict[Hashable, bool] = {}
        self._count = 0
        self.num_steps = 0
        self.is_cut = False

    def decide(self, key: Hashable, main: bool = True, acts: bool = True) -> bool:
        """Which way a condition goes; the same for the same `key`."""
        if key not in self._known:
            position = len(self.taken)
            choice = self._given[position] if position < len(self._given) else main
            self.taken.append(choice)
            self.acting.append(acts)
            self._known[key] = choice
        return self._known[key]

    @property
    def answers(self) -> dict[Hashable, bool]:
        """Question to answer of every decision."""
        return self._known

    def fresh(self) -> int:
        """A number that this path has not used."""
        self._count += 1
        return self._count

    def tick(self) -> None:
        """Count a statement."""
        self.num_steps += 1
        if self.num_steps > MAX_STEPS:
            raise PathEnded


class Budget:
    """Statements that the paths of a file may run: a class of many methods has many entries."""

    def __init__(self) -> None:
        self.spent = 0

    def share(self) -> int:
        """Of the next entry."""
        return max(min(MAX_TOTAL, MAX_FILE - self.spent), MAX_MINOR)


def paths(run: Callable[[Path], None], budget: Budget) -> Iterator[tuple[Path, _Shown]]:
    """Run the program once per path; yields the paths that can be judged, and what each shows.

    Exploring ends early where the first paths show no training at all, and where all paths together
    have run for very long: library code is full of branches and has no training step.
    """
    queue, share = _Queue(), budget.share()
    num_steps, trains = 0, False
    for i in range(MAX_PATHS):
        found = queue.next(minor=num_steps <= MAX_MINOR)
        if found is None or num_steps > share or (i >= MAX_BARREN and not trains):
            return
        given, before = found
        path = Path(given)
        silent = _is_silent(run, path)
        num_steps += path.num_steps
        budget.spent += path.num_steps
        trains |= any(event.kind in _TRAINS for event in path.events)
        events = _shown(path.events)
        if events != before:
            queue.turn(path, len(given), events)
        if not silent:
            yield path, events


class _Queue:
    """Paths to run, with what happened on the path that each of them turns off."""

    def __init__(self) -> None:
        self._first: deque[tuple[_Turns, _Shown | None]] = deque([((), None)])
        self._last: deque[tuple[_Turns, _Shown | None]] = deque()

    def next(self, minor: bool) -> tuple[_Turns, _Shown | None] | None:
        """The path to run next; one that turns a minor decision only if these are wanted."""
        queue = self._first or (self._last if minor else None)
        return queue.popleft() if queue else None

    def turn(self, path: Path, start: int, events: _Shown) -> None:
        """Add the paths that turn a decision of `path`, from the one at `start` on."""
        for k in range(start, len(path.taken)):
            queue = self._first if path.acting[k] else self._last
            queue.append(((*path.taken[:k], not path.taken[k]), events))


def _shown(events: list[Event]) -> _Shown:
    """What happened, without the modules and names, which are others on every path."""
    scalers: dict[str | None, int] = {}
    return tuple(
        (event.kind, event.where, scalers.setdefault(event.scaler, len(scalers)), _facts(event))
        for event in events
    )


_OF_ONE_PATH = frozenset(["models", "rounds", "position"])


def _facts(event: Event) -> str:
    return repr([(key, value) for key, value in event.facts.items() if key not in _OF_ONE_PATH])


def _is_silent(run: Callable[[Path], None], path: Path) -> bool:
    try:
        run(path)
    except PathEnded:
        path.is_cut = True
    except Silent:
        return True
    return False
