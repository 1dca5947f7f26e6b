"""What the interpreter offers to the kinds of values: no more than they need."""

from __future__ import annotations

import ast
from collections.abc import Hashable
from typing import Any, NoReturn, Protocol

from halfstep.check.values.base import NOBODY, External, Models, Unknown, Value
from halfstep.check.values.call import Call
from halfstep.check.values.objects import Class, Function, Instance, Scope
from halfstep.check.values.state import PathState
from halfstep.rules.events import Place


class Rounds(Protocol):
    """What a program may ask about the rounds of its loops."""

    def number(self, value: Value) -> int | None:
        """`value` as a number, if it is one or is known by the rounds of a loop."""

    def alias(self, whole: Value, parts: list[Value]) -> None:
        """`whole` is as long as each of `parts`."""

    def is_window(self, node: ast.expr) -> bool:
        """Whether `node` is a variable that counts the micro-batches of a window, or a list."""


class Run(Protocol):
    """One path through a program, while it runs.

    Attributes:
        state: Where the path is, and what its training has come to.
        rounds: What is known of its loops.
    """

    state: PathState

    @property
    def rounds(self) -> Rounds:
        """What is known of its loops."""

    def emit(self, kind: str, node: ast.AST | Place, **fields: Any) -> None:
        """Record an event at `node`."""

    def site(self, node: ast.AST) -> Place:
        """Place of `node`, or of the call that leads to it from the function that steps."""

    def fresh(self) -> int:
        """A number that this path has not used."""

    def unknown(self, name: str = "", models: Models = NOBODY) -> Unknown:
        """A value of its own that nothing is known about."""

    def decide(self, question: Hashable, main: bool = True, acts: bool = True) -> bool:
        """Which way a condition goes; the same for the same `question`."""

    def give_up(self) -> NoReturn:
        """A framework does the work on this path: nothing can be said about it."""

    def evaluate(self, node: ast.expr, scope: Scope) -> Value:
        """The value of an expression."""

    def bind(self, target: ast.expr, value: Value, scope: Scope) -> None:
        """Assign `value` to a name, an attribute, an item or a tuple of these."""

    def call(
        self,
        function: Function,
        given: list[Value],
        named: dict[str, Value],
        at: ast.AST | None = None,
    ) -> Value:
        """Run a function of the project, called `at` some place, and return what it returns."""

    def apply(self, function: Value, call: Call) -> Value:
        """Call anything; what nobody can look into makes what it is given uncertain."""

    def make(self, cls: Class, call: Call) -> Value:
        """An object of a class of the project."""

    def call_external(self, function: External, call: Call) -> Value | None:
        """Call a function from outside of the project; ``None`` if nobody knows what it does."""

    def method_of_unknown(self, owner: Unknown, name: str, call: Call) -> Value | None:
        """Call a method of an object that is known by its use alone."""

    def inherited_attribute(self, owner: Instance, name: str) -> Value | None:
        """An attribute that an object of the project has from torch."""

    def known_attribute(self, owner: Unknown, name: str) -> Value | None:
        """An attribute of such an object, if torch gives it a meaning."""

    def saves_scaler(self) -> bool:
        """Whether the file, or one that it imports, takes the state of a scaler anywhere."""

    def is_model(self, owner: Unknown) -> bool:
        """Whether its parameters are asked for, in an optimizer or anywhere in the file."""

    def used_as(self, value: Unknown) -> Value:
        """A scaler, optimizer or schedule where the file uses the name as one."""
