"""The arguments of a call, each evaluated once and when first asked for."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from halfstep.check.values.base import Const, Value
from halfstep.check.values.containers import Sequence

if TYPE_CHECKING:
    from halfstep.check.values.objects import Scope
    from halfstep.check.values.run import Run


class Call:
    """A call and its arguments.

    Args:
        node: The call.
        scope: Where its arguments are evaluated.
        run: Evaluates them.
    """

    def __init__(self, node: ast.Call, scope: Scope, run: Run) -> None:
        self.node = node
        self._scope = scope
        self._run = run
        self._given: list[Value] | None = None
        self._named: dict[str, Value] | None = None

    def count(self) -> int:
        """Number of arguments."""
        return len(self.node.args) + len(self.node.keywords)

    def names(self) -> set[str]:
        """Of the arguments given by name."""
        return {keyword.arg for keyword in self.node.keywords if keyword.arg}

    def given(self) -> list[Value]:
        """Arguments by position."""
        if self._given is None:
            self._given = list(self._positional())
        return self._given

    def _positional(self) -> Iterator[Value]:
        for node in self.node.args:
            value = self._run.evaluate(node, self._scope)
            if isinstance(node, ast.Starred) and isinstance(value, Sequence):
                yield from value.items
            else:
                yield value

    def named(self) -> dict[str, Value]:
        """Arguments by name."""
        if self._named is None:
            self._named = {
                keyword.arg or "**": self._run.evaluate(keyword.value, self._scope)
                for keyword in self.node.keywords
            }
        return self._named

    def all(self) -> list[Value]:
        """All arguments."""
        return [*self.given(), *self.named().values()]

    def evaluate_all(self) -> None:
        """Evaluate the arguments for their side effects."""
        self.all()

    def first(self) -> Value:
        """The first argument, by position or by name."""
        values = self.all()
        return values[0] if values else Const(None)

    def constants(self) -> dict[str, Any]:
        """Arguments by name whose value is a constant."""
        return {n: v.value for n, v in self.named().items() if isinstance(v, Const)}


class Given(Call):
    """A call whose arguments were evaluated before."""

    def __init__(
        self, node: ast.Call, given: list[Value], named: dict[str, Value] | None = None
    ) -> None:
        self.node = node
        self._given = given
        self._named = named or {}

    def count(self) -> int:
        """Number of arguments."""
        return len(self.all())


# Calls that give something else each time: an object, a batch, a number by chance.
_NEW = re.compile(
    r"^[A-Z]|(^|_)(next|pop|popleft|sample|batch|batches|read|recv|poll|fetch|load|rand|random|step"
    r"|draw|generate|time|perf|forward|clone|copy|deepcopy|__call__)(_|$)"
)


@functools.cache
def makes_new(name: str) -> bool:
    """Whether two calls of a function or method with equal arguments may give different things."""
    return bool(_NEW.search(name))


def has_training_objects(value: Value) -> bool:
    """Whether anything of a training step is in `value`."""
    return next(value.training_objects(), None) is not None


def is_infinite(call: Call, limit: int) -> bool:
    """Whether the limit of a clip is written as infinity: it only measures the norm."""
    nodes = [*call.node.args[limit : limit + 1], *(k.value for k in call.node.keywords)]
    texts = {ast.unparse(node) for node in nodes}
    return bool(texts & {"float('inf')", "math.inf", "np.inf", "torch.inf", "inf"})
