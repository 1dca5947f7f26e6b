"""Where a path is in the program, and what its training has come to."""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from halfstep.check.values.base import Models, Unknown, Value
from halfstep.check.values.regions import roots

if TYPE_CHECKING:
    from halfstep.check.source.module import Module
    from halfstep.check.values.numbers import Loop
    from halfstep.check.values.run import Run
    from halfstep.rules.events import Place

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Frame(NamedTuple):
    """Where a path is: all that is entered, and left again as it was.

    Attributes:
        module: The file whose code is running.
        functions: Definitions that are running, outermost first.
        loops: Loops that are running, outermost first.
        no_grad: Whether no gradients are recorded.
        autocast: Whether an autocast is entered.
        chosen: Depth of branches that the path chose without knowing.
        guarded: Whether it is in a branch under a test for a skipped step.
        stepping: Whether the ``step`` of an optimizer of the project's own runs.
        sites: File and call of each of the running functions.
        average: Whether a moving average is being updated, by a method that is named so.
        uncertain: Depth of branches that are run without a decision whether they are.
        uncertain_at_call: The same where the running function was called.
        uncertain_since: Number of the first object made in the outermost of these branches.
    """

    module: Module | None = None
    functions: tuple[FunctionNode, ...] = ()
    loops: tuple[Loop, ...] = ()
    no_grad: bool = False
    autocast: bool = False
    chosen: int = 0
    guarded: bool = False
    stepping: bool = False
    sites: tuple[tuple[Module | None, ast.AST | None], ...] = ()
    average: bool = False
    uncertain: int = 0
    uncertain_at_call: int = 0
    uncertain_since: int = 0


class Entered:
    """A block of a path with a frame of its own; a class, as a path enters thousands.

    Args:
        state: Of the path.
        frame: In the block.
    """

    __slots__ = ("_before", "_frame", "_state")

    def __init__(self, state: PathState, frame: Frame) -> None:
        self._state = state
        self._frame = frame

    def __enter__(self) -> None:
        self._before = self._state.frame
        self._state.frame = self._frame

    def __exit__(self, *raised: object) -> None:
        self._state.frame = self._before


@dataclass
class PathState:
    """The state of one path.

    Attributes:
        frame: Where it is.
        num_steps: Steps of optimizers so far.
        num_backwards: Backward passes so far.
        steps_before_backward: Steps before the last of them.
        num_skip_tests: Tests for a skipped step so far.
        num_choices: How often the path had to choose without knowing.
        decisions_before_backward: Decisions of the path before the last backward.
        num_writes: How often something was changed that is seen outside of its function.
        finite_known: Whether the program has asked if the gradients are finite.
        after_skip_test: Whether the other branch of a test for a skipped step has left.
        has_failed: Whether something has raised: once is enough on one path.
        fails_in: The kind of event that raises when it comes next; empty for none.
        step_functions: Definitions that were running at the last step.
        carried_from: The place of the last backward.
        carrying: The scaler whose scale the last backward had.
        optimizers: Name to the regions of the parameters, ``None`` if nobody knows them.
        trained: Modules that a backward has reached.
        averages: Moving averages of modules.
        names: Provisional name of an object to that of its variable.
        hooks: Run after each scaled backward: what the program has registered on tensors.
        changed: Modules whose weights were changed in place.
        made: Modules that the path has seen being made: no other name means them.
        looped: Questions of the lists, of unknown length, that loops have gone through.
        frozen: Modules whose parameters need no gradients now.
        gradients: Module to whether its parameters have gradients now.
        gradients_elsewhere: The same for all other modules, ``None`` if nobody knows.
        attributes: What was assigned to attributes of objects that are not known.
        entries: What was put into such objects, under a text.
    """

    frame: Frame = field(default_factory=Frame)
    num_steps: int = 0
    num_backwards: int = 0
    steps_before_backward: int = 0
    num_skip_tests: int = 0
    num_choices: int = 0
    num_writes: int = 0
    decisions_before_backward: int = 0
    finite_known: bool = False
    after_skip_test: bool = False
    has_failed: bool = False
    fails_in: str = ""
    step_functions: tuple[FunctionNode, ...] = ()
    carrying: str | None = None
    carried_from: Place | None = None
    optimizers: dict[str, Models | None] = field(default_factory=dict)
    trained: set[Hashable] = field(default_factory=set)
    averages: set[Hashable] = field(default_factory=set)
    names: dict[str, str] = field(default_factory=dict)
    attributes: dict[tuple[Hashable, str], Value] = field(default_factory=dict)
    entries: dict[tuple[Hashable, str], Value] = field(default_factory=dict)
    gradients: dict[Hashable, bool] = field(default_factory=dict)
    gradients_elsewhere: bool | None = None
    hooks: list[Callable[[Run], None]] = field(default_factory=list)
    changed: set[Hashable] = field(default_factory=set)
    frozen: Models = frozenset()
    made: set[Hashable] = field(default_factory=set)
    looped: set[Hashable] = field(default_factory=set)
    _numbers: dict[Hashable, int] = field(default_factory=dict)

    @property
    def module(self) -> Module:
        """The file whose code is running."""
        assert self.frame.module is not None
        return self.frame.module

    def entered(self, **changes: Any) -> Entered:
        """With another `frame`, until the block ends in whatever way."""
        return Entered(self, self.frame._replace(**changes))

    def entered_branch(self, tested: bool = False, chosen: bool = False) -> Entered:
        """In a branch under a test for a skip, or one that the path chose without knowing."""
        frame = self.frame
        return self.entered(guarded=frame.guarded or tested, chosen=frame.chosen + chosen)

    def entered_uncertain(self) -> Entered:
        """In a branch that may not run: what is set in it is not known for certain."""
        frame = self.frame
        since = frame.uncertain_since if frame.uncertain else Value().number
        return self.entered(uncertain=frame.uncertain + 1, uncertain_since=since)

    def note_backward(self) -> None:
        """A new window, or more of one."""
        self.num_backwards += 1
        self.steps_before_backward = self.num_steps
        self.finite_known = False
        self.after_skip_test = False

    def set_frozen(self, models: Models, frozen: bool) -> None:
        """Whether a backward gives the parameters of `models` no gradients."""
        self.frozen = self.frozen | models if frozen else self.frozen - models

    def note_gradients(self, models: Models | None, present: bool) -> None:
        """From now on the parameters of `models` have gradients, or have none."""
        if not models:
            self.gradients.clear()
            self.gradients_elsewhere = present
        for root in roots(models or ()):
            self.gradients[root] = present

    def has_gradients(self, models: Models) -> bool | None:
        """Whether the parameters of `models` have gradients now."""
        found = {self.gradients.get(root, self.gradients_elsewhere) for root in roots(models)}
        return found.pop() if len(found) == 1 else None

    def give_name(self, id_: str, variable: str) -> None:
        """Show an object under its first variable, each object under a name of its own."""
        if id_ not in self.names:
            others = sum(name.split("#")[0] == variable for name in self.names.values())
            self.names[id_] = f"{variable}#{others + 1}" if others else variable

    def name_of(self, value: Unknown) -> str:
        """Of a scaler, optimizer or schedule that only its use shows: one per object."""
        if not value.is_made_here():
            return value.name
        number = self._numbers.setdefault(value.key, len(self._numbers) + 1)
        own = f"{value.name}{'~' if value.is_item() else '#'}{number}"
        self.give_name(own, value.name)
        return own
