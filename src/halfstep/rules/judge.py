"""Rules against one program path."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator
from typing import TYPE_CHECKING

from halfstep.rules import events as e
from halfstep.rules.events import Event
from halfstep.rules.ledger import Ledger
from halfstep.rules.rule import Hit, OrderRule, Rule

if TYPE_CHECKING:
    from halfstep.records.finding import Finding

_MARKS = re.compile(r"(?<=\w)@\d+(#\d+)?|(?<=\w)#\d+\b")


class Judge:
    """Feeds events to rules, one at a time; a guard keeps one for the whole run.

    Args:
        rules: Rules to ask; those that are not over events are left out.
    """

    def __init__(self, rules: Iterable[type[Rule]]) -> None:
        self.ledger = Ledger()
        self._rules = [rule() for rule in rules if issubclass(rule, OrderRule)]
        self._held: list[tuple[type[Rule], Hit, set[str]]] = []  # until a step uses the gradients
        self._listeners: dict[str, list[OrderRule]] = {}
        for rule in self._rules:
            for kind in rule.listens:
                self._listeners.setdefault(kind, []).append(rule)

    def feed(self, event: Event) -> Iterator[Finding]:
        """What the rules say about `event`; afterwards the ledger has taken it over."""
        return (finding_of(rule, hit) for rule, hit in self.hits(event))

    def hits(self, event: Event) -> Iterator[tuple[type[Rule], Hit]]:
        """The same as hits, which know how to put it right."""
        for rule in self._listeners.get(event.kind, ()):
            for hit in rule.on_event(event, self.ledger):
                if hit.used_by:
                    self._held.append((type(rule), hit, {*hit.used_by}))
                else:
                    yield type(rule), hit
        if self._held:
            yield from self._settled(event)
        self.ledger.apply(event)

    def _settled(self, event: Event) -> Iterator[tuple[type[Rule], Hit]]:
        """The held hits that `event` makes count; those that it makes void are forgotten."""
        held, self._held = self._held, []
        for rule, hit, waiting in held:
            if event.kind == e.ZERO_GRAD:
                waiting.difference_update(event.optimizers)
            if event.kind in (e.STEP, e.OPAQUE) and waiting & {*event.optimizers, *event.maybe}:
                yield rule, hit
            elif waiting:
                self._held.append((rule, hit, waiting))

    def refuted(self) -> set[Hashable]:
        """What this path shows against hits of others, see `Hit.unless`."""
        return set().union(*(rule.refutes for rule in self._rules))

    def finish(self) -> Iterator[Finding]:
        """What the rules say at the end of the path."""
        return (finding_of(rule, hit) for rule, hit in self.last_hits())

    def last_hits(self) -> Iterator[tuple[type[Rule], Hit]]:
        """The same as hits."""
        for held, hit, waiting in self._held:
            if not all(self._never_steps(optimizer) for optimizer in waiting):
                yield held, hit
        for rule in self._rules:
            for hit in rule.finish(self.ledger):
                yield type(rule), hit

    def _never_steps(self, optimizer: str) -> bool:
        """Whether all that happens to `optimizer` was seen, and no step was among it."""
        window = self.ledger.window(optimizer)
        return window.born and window.known and not self.ledger.opaque


def judge(path: Iterable[Event], rules: Iterable[type[Rule]]) -> list[Finding]:
    """All findings of one path, each once."""
    refuted: set[Hashable] = set()
    hits = list(hits_of(path, rules, refuted))
    held = ((rule, hit) for rule, hit in hits if hit.unless is None or hit.unless not in refuted)
    return list(dict.fromkeys(finding_of(rule, hit) for rule, hit in held))


def hits_of(
    path: Iterable[Event],
    rules: Iterable[type[Rule]],
    refuted: set[Hashable] | None = None,
    is_cut: bool = False,
) -> Iterator[tuple[type[Rule], Hit]]:
    """All hits of one path; what it refutes of others is added to `refuted`.

    Args:
        path: Its events.
        rules: Rules to ask.
        refuted: What paths show against hits of others.
        is_cut: Whether the program goes on where the path ends.
    """
    judge_ = Judge(rules)
    judge_.ledger.is_cut = is_cut
    for event in path:
        yield from judge_.hits(event)
    yield from judge_.last_hits()
    if refuted is not None:
        refuted |= judge_.refuted()


def _in_names(text: str) -> str:
    """`text` without the marks by which a reader tells objects without a variable apart."""
    return _MARKS.sub("", text)


def finding_of(rule: type[Rule], hit: Hit) -> Finding:
    """The record of a hit."""
    from halfstep.records.finding import Finding, Related  # most files need none

    where = hit.where
    values = {k: v.split("#")[0] if isinstance(v, str) else v for k, v in hit.values.items()}
    return Finding(
        code=rule.code,
        name=rule.name,
        severity=hit.severity or rule.severity,
        path=where.path,
        line=where.line,
        column=where.column,
        message=_in_names((hit.message or rule.message).format(**values)),
        remedy=_in_names((hit.remedy or rule.remedy).format(**values)),
        related=tuple(Related(place.path, place.line, text) for place, text in hit.related),
    )
