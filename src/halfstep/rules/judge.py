"""Rules against one program path."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from halfstep.rules.events import Event
from halfstep.rules.ledger import Ledger
from halfstep.rules.rule import Hit, OrderRule, Rule

if TYPE_CHECKING:
    from halfstep.records.finding import Finding


class Judge:
    """Feeds events to rules, one at a time; a guard keeps one for the whole run.

    Args:
        rules: Rules to ask; those that are not over events are left out.
    """

    def __init__(self, rules: Iterable[type[Rule]]) -> None:
        self.ledger = Ledger()
        self._rules = [rule() for rule in rules if issubclass(rule, OrderRule)]
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
                yield type(rule), hit
        self.ledger.apply(event)

    def finish(self) -> Iterator[Finding]:
        """What the rules say at the end of the path."""
        return (finding_of(rule, hit) for rule, hit in self.last_hits())

    def last_hits(self) -> Iterator[tuple[type[Rule], Hit]]:
        """The same as hits."""
        for rule in self._rules:
            for hit in rule.finish(self.ledger):
                yield type(rule), hit


def judge(path: Iterable[Event], rules: Iterable[type[Rule]]) -> list[Finding]:
    """All findings of one path, each once."""
    return list(dict.fromkeys(finding_of(rule, hit) for rule, hit in hits_of(path, rules)))


def hits_of(path: Iterable[Event], rules: Iterable[type[Rule]]) -> Iterator[tuple[type[Rule], Hit]]:
    """All hits of one path."""
    judge_ = Judge(rules)
    for event in path:
        yield from judge_.hits(event)
    yield from judge_.last_hits()


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
        message=(hit.message or rule.message).format(**values),
        remedy=rule.remedy.format(**values),
        related=tuple(Related(place.path, place.line, text) for place, text in hit.related),
    )
