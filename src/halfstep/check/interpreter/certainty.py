"""How sure a finding is, by the ways through the program that show it.

A path answers questions that nobody could settle. Two of them may be one setting under two names,
``args.amp`` here and ``cfg.fp16`` there: what exists only where one of them holds and the other
does not has no witness that a reader would accept.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

Answers = Mapping[Hashable, bool]
_PER_ROUND = frozenset(["new", "item", "raises", "in step", "rest", "below", "above"])
_NEGATIVE = re.compile(r"^\W*(no|not|disable|disabled|without|skip)(_|$)")
_NOTHING = frozenset(("const", text) for text in ("None", "False", "0"))


def is_certain(witnesses: Sequence[Answers], others: Sequence[Answers]) -> bool:
    """Whether a finding does not hang on two settings that differ.

    Args:
        witnesses: Answers of the paths that show it.
        others: Answers of the paths that do not.
    """
    turns = {_turned(witness, other) for witness in witnesses for other in others}
    first = witnesses[0]
    needed = [
        question
        for question in turns - {None}
        if _is_setting(question)
        and all(path.get(question) is first.get(question) for path in witnesses)
    ]
    return len(set(_settings(needed, first).values())) < 2


def _turned(one: Answers, other: Answers) -> Hashable:
    """The one question that two paths answer differently; ``None`` if there are more."""
    found = None
    for question, answer in one.items():
        if other.get(question, answer) is not answer:
            if found is not None:
                return None
            found = question
    return found


def _settings(questions: Iterable[Hashable], answers: Answers) -> dict[Hashable, bool]:
    """Whether each setting is on; one that was compared with several constants is one setting."""
    found: dict[Hashable, bool] = {}
    for question in questions:
        name, holds = question, _holds(question, answers[question])
        if isinstance(question, tuple) and question[0] in ("equal", "among"):
            name = question[1]
        found[name] = found.get(name, False) or holds
    return found


def _is_setting(question: Hashable) -> bool:
    """Whether a question is the same in all of a run: no value of a round is in it."""
    return not any(part in _PER_ROUND for part in _parts(question))


def _holds(question: Hashable, answer: bool) -> bool:
    """Whether the setting is on: ``scaler is None`` and ``no_amp`` say that one is off."""
    if isinstance(question, tuple) and question[:1] == ("equal",) and question[-1] in _NOTHING:
        return not _holds(question[1], answer)
    names = [part for part in _parts(question) if isinstance(part, str) and part.strip(".()[]")]
    return answer is not any(map(_NEGATIVE.match, names))


def _parts(question: Hashable) -> Iterator[Hashable]:
    if isinstance(question, (tuple, frozenset)):
        for part in question:
            yield from _parts(part)
    else:
        yield question
