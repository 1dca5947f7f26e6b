"""What a path has answered so far, and what follows from it.

A question is asked once per path. Its answer settles others: a value that equals one constant
equals no other; what is not ``None`` may be used where its truth is asked; a conjunction is as true
as its parts. Only a question that nothing settles is a decision of the path.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

_Part = TypeVar("_Part")
Decide = Callable[[Hashable, bool, bool], bool]
_NONE = ("const", "None")
_FALSE = frozenset(("const", text) for text in ("None", "False", "0", "0.0", "''", "()", "[]"))
_BOOLEANS = (("const", "True"), ("const", "False"))
_TURNED = {"Gt": "Lt", "GtE": "LtE"}


def denied(question: Hashable) -> Hashable:
    """The negated question."""
    if isinstance(question, tuple) and question[0] == "not":
        inner: Hashable = question[1]
        return inner
    return ("not", question)


class Knowledge:
    """Answers of one path.

    Args:
        decide: Makes the decisions of the path: question, main way, whether something can happen
            in a branch.
    """

    def __init__(self, decide: Decide) -> None:
        self._decide = decide
        self._answers: dict[Hashable, bool] = {}
        self._equal: dict[Hashable, Hashable] = {}  # value to the constant that it is
        self._unequal: dict[Hashable, set[Hashable]] = {}  # value to constants that it is not
        self._among: dict[Hashable, frozenset[Hashable]] = {}  # value to the constants it may be
        self._bounds: dict[Hashable, tuple[float, float]] = {}  # value to what it lies between

    def ask(self, question: Hashable, main: bool = True, acts: bool = True) -> bool:
        """The answer to a question; the main way, or what the path decides, if it is open."""
        if isinstance(question, tuple) and question:
            kind = question[0]
            if kind == "not":
                return not self.ask(question[1], not main, acts)
            if kind in ("And", "Or"):
                return self.joined(kind == "Or", question[1:], main, self.ask, acts)
        known = self.answer(question)
        if known is None:
            known = self._decide(question, main, acts)
            self._learn(question, known)
        return known

    @staticmethod
    def joined(
        stop: bool,
        parts: Iterable[_Part],
        main: bool,
        ask: Callable[[_Part, bool, bool], bool],
        acts: bool,
    ) -> bool:
        """The answer to ``and`` and ``or``: `stop` as soon as a part is `stop`.

        Where a part goes another way than the whole should, the others follow it: a path that turns
        one part of two shall see the other branch.
        """
        for part in parts:
            answer = ask(part, main, acts)
            if answer is stop:
                return stop
            main = answer
        return not stop

    def answer(self, question: Hashable) -> bool | None:
        """The answer, as far as earlier ones settle it."""
        known = self._answers.get(question)
        if known is not None or not isinstance(question, tuple) or not question:
            return self._truth(question) if known is None else known
        kind = question[0]
        if kind == "not":
            inner = self.answer(question[1])
            return None if inner is None else not inner
        if kind in ("And", "Or"):
            answers = [self.answer(part) for part in question[1:]]
            stop = kind == "Or"
            return stop if stop in answers else None if None in answers else not stop
        if kind == "equal" and len(question) == 3:
            return self._is_equal(question[1], question[2])
        if kind == "among":
            return self._is_among(question[1], question[2])
        if kind in ("Lt", "LtE") and len(question) == 3:
            return self._is_below(kind, question[1], question[2])
        return self._truth(question)

    def constant(self, value: Hashable) -> Any:
        """The number that a value was found equal to; ``None`` if there is none."""
        number = _number(self._equal.get(value))
        return int(number) if number is not None and number == int(number) else None

    def _truth(self, value: Hashable) -> bool | None:
        """Of a value that is asked for its own truth."""
        constant = self._equal.get(value)
        if constant is not None:
            return constant not in _FALSE
        among = self._among.get(value)
        if among and not among & _FALSE:
            return True
        return True if _NONE in self._unequal.get(value, ()) else None

    def _is_equal(self, value: Hashable, constant: Hashable) -> bool | None:
        known = self._equal.get(value)
        if known is not None:
            return known == constant if _is_constant(constant) else None
        if constant in self._unequal.get(value, ()):
            return False
        among = self._among.get(value)
        if among is not None and _is_constant(constant):
            left = among - self._unequal.get(value, set())
            if constant not in left:
                return False
            if len(left) == 1:
                return True
        truth = self._answers.get(value)
        if truth is True and constant in _FALSE:
            return False
        return True if truth is False and constant == _NONE else None

    def _is_among(self, value: Hashable, constants: frozenset[Hashable]) -> bool | None:
        known = self._equal.get(value)
        if known is not None:
            return known in constants
        left = constants - self._unequal.get(value, set())
        among = self._among.get(value)
        if among is not None:
            if among <= constants:
                return True
            left &= among
        return None if left else False

    def _is_below(self, kind: str, left: Hashable, right: Hashable) -> bool | None:
        """``left < right`` or ``left <= right``, one of them a number."""
        for value, limit, turned in ((left, _number(right), False), (right, _number(left), True)):
            if limit is None or value not in self._bounds:
                continue
            low, high = self._bounds[value]
            if turned:  # limit < value
                if low > limit or (kind == "LtE" and low >= limit):
                    return True
                return False if high <= limit and kind == "Lt" else None
            if high < limit or (kind == "LtE" and high <= limit):
                return True
            return False if low >= limit and kind == "Lt" else None
        return None

    def _learn(self, question: Hashable, truth: bool) -> None:
        self._answers[question] = truth
        if not isinstance(question, tuple) or len(question) != 3:
            return
        kind, value, other = question
        if kind == "equal" and _is_constant(other):
            if truth:
                self._equal[value] = other
            else:
                self._unequal.setdefault(value, set()).add(other)
        elif kind == "among":
            if truth:
                self._among[value] = self._among.get(value, other) & other
            else:
                self._unequal.setdefault(value, set()).update(other)
        elif kind in ("Lt", "LtE"):
            self._learn_bound(value, other, truth)

    def _learn_bound(self, left: Hashable, right: Hashable, truth: bool) -> None:
        for value, limit, turned in ((left, _number(right), False), (right, _number(left), True)):
            if limit is not None:
                low, high = self._bounds.get(value, (float("-inf"), float("inf")))
                if truth is turned:
                    low = max(low, limit)
                else:
                    high = min(high, limit)
                self._bounds[value] = low, high


def _is_constant(key: Hashable) -> bool:
    return isinstance(key, tuple) and bool(key) and key[0] in ("const", "external")


def _number(key: Hashable) -> float | None:
    if not isinstance(key, tuple) or key[:1] != ("const",):
        return None
    try:
        return float(key[1])
    except ValueError:
        return None


def compared(operator: str, left: Hashable, right: Hashable) -> Hashable:
    """The question that a comparison is: one of ``==``, ``<`` or ``<=``, perhaps negated.

    Args:
        operator: Name of the class of `ast`.
        left: Key of the left side.
        right: Key of the right side.
    """
    if operator in ("NotEq", "IsNot", "NotIn"):
        positive = {"NotEq": "Eq", "IsNot": "Is", "NotIn": "In"}[operator]
        return denied(compared(positive, left, right))
    if operator in _TURNED:
        return (_TURNED[operator], right, left)
    if operator in ("Eq", "Is"):
        if _is_constant(left) and not _is_constant(right):
            left, right = right, left
        if right in _BOOLEANS:
            return left if right == ("const", "True") else denied(left)
        return ("equal", left, right)
    return (operator, left, right)


def among(value: Hashable, constants: Iterable[Any]) -> Hashable:
    """The question whether a value is one of some constants."""
    return ("among", value, frozenset(constants))
