"""What a rule is."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from halfstep.rules.events import Event, Place

if TYPE_CHECKING:
    from halfstep.records.finding import Severity
    from halfstep.rules.ledger import Ledger, Window
    from halfstep.rules.source import Source


class Edit(NamedTuple):
    """A change of source text.

    Attributes:
        place: The range that goes; empty where it ends as it begins.
        text: What comes instead.
    """

    place: Place
    text: str


class Hit:
    """A mistake that a rule sees.

    Attributes:
        where: The line to change.
        related: Other places, each with what it has to do with it.
        values: Fill the ``{fields}`` of the rule's message and remedy.
        severity: Instead of the rule's own, where a variant is milder.
        message: Instead of the rule's own, where a variant needs other words.
        remedy: Likewise.
        edits: Put it right, if the rule can.
        unless: What refutes the hit, if any way through the program shows it: see
            `OrderRule.refutes`.
        avoidable: Whether another way leads past `where` to the same mistake or to none: the hit
            counts once a path was followed that takes it.
        used_by: Optimizers whose gradients are spoilt. The hit counts once one of them steps:
            gradients that are cleared before that do no harm. Empty where it counts at once.
    """

    __slots__ = (
        *(
            "avoidable",
            "edits",
            "message",
            "related",
            "remedy",
            "severity",
            "unless",
            "used_by",
            "values",
        ),
        "where",
    )

    def __init__(
        self,
        where: Event | Place,
        *related: tuple[Event | Place | None, str],
        severity: Severity | None = None,
        message: str | None = None,
        remedy: str | None = None,
        edits: tuple[Edit, ...] = (),
        used_by: Iterable[Window] = (),
        **values: Any,
    ) -> None:
        self.where = _place(where)
        self.related = [(_place(place), text) for place, text in related if place is not None]
        self.severity = severity
        self.message = message
        self.remedy = remedy
        self.edits = edits
        self.unless: Hashable = None
        self.avoidable = False
        self.used_by = tuple(window.optimizer for window in used_by)
        self.values = values


def _place(where: Event | Place) -> Place:
    return where.where if isinstance(where, Event) else where


class Rule:
    """One rule; the class attributes are all that docs, tests and ``--explain`` need.

    Attributes:
        severity: ``"error"``, ``"warning"`` or ``"note"``.
        readers: ``"LG"``, ``"L"`` or ``"G"``: linter, guard.
        message: What the mistake does to training; may hold ``{fields}``.
        remedy: What to write instead.
        bad: A script that runs and makes the mistake, its lines marked with ``# <- CODE``.
        good: The same script done right.
        fixes: Whether its edits are ``"safe"`` (training does the same) or ``"unsafe"``.
        code, name: From the name of the rule's file.
    """

    severity: ClassVar[Severity] = "error"
    readers: ClassVar[str] = "LG"
    message: ClassVar[str]
    remedy: ClassVar[str]
    bad: ClassVar[str]
    good: ClassVar[str]
    fixes: ClassVar[Literal["safe", "unsafe"] | None] = None
    code: ClassVar[str]
    name: ClassVar[str]


class OrderRule(Rule):
    """A rule over events: a small state machine, one instance per program path."""

    listens: ClassVar[tuple[str, ...]]

    @property
    def refutes(self) -> set[Hashable]:
        """What this path shows that refutes hits of others, which wait for it."""
        if not hasattr(self, "_refutes"):
            self._refutes: set[Hashable] = set()
        return self._refutes

    def on_event(self, event: Event, ledger: Ledger) -> Iterator[Hit]:
        """What is wrong with `event`, given the state before it."""
        raise NotImplementedError

    def finish(self, ledger: Ledger) -> Iterator[Hit]:
        """What is wrong with a path as a whole, at its end."""
        return iter(())


class SourceRule(Rule):
    """A rule over the text of one file, for what no event shows.

    Attributes:
        words: A file is read only if one of each group stands in it.
    """

    readers: ClassVar[str] = "L"
    words: ClassVar[tuple[tuple[str, ...], ...]] = ()

    @classmethod
    def concerns(cls, text: str) -> bool:
        """Whether `text` can have anything for this rule; a cheap look at its words."""
        return all(any(word in text for word in group) for group in cls.words)

    def check(self, source: Source) -> Iterator[Hit]:
        """All that is wrong in `source`."""
        raise NotImplementedError
