"""The interpreter: one path through a program.

It knows what a training step is made of and nothing else: every other value is opaque. Functions
and methods of the project are followed when they are called; loops run twice (four or five times
where a condition counts micro-batches); a branch in which nothing can happen costs no decision.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Hashable
from typing import Any, NoReturn

from halfstep.check.interpreter.binding import Binding
from halfstep.check.interpreter.blocks import Blocks
from halfstep.check.interpreter.calls import Calls
from halfstep.check.interpreter.conditions import Conditions
from halfstep.check.interpreter.ends import Raised, Silent
from halfstep.check.interpreter.explore import Path
from halfstep.check.interpreter.expressions import Expressions
from halfstep.check.interpreter.imports import Imports
from halfstep.check.interpreter.knowledge import Knowledge
from halfstep.check.interpreter.lengths import Lengths
from halfstep.check.interpreter.loops import Loops
from halfstep.check.interpreter.statements import Statements
from halfstep.check.source.project import Project
from halfstep.check.torch_models import table
from halfstep.check.torch_models.models import has_parameters, of_unknown, used_as
from halfstep.check.torch_models.own import part_of
from halfstep.check.values.base import NOBODY, External, Models, Unknown, Value
from halfstep.check.values.call import Call
from halfstep.check.values.objects import Class, Function, Instance, Scope
from halfstep.check.values.regions import roots
from halfstep.check.values.state import PathState
from halfstep.rules import events as e
from halfstep.rules.events import Event, Place

_MOVED = (e.SCHEDULE, e.EMA)  # what a skip should hold still


class Machine:
    """Runs statements of a program on one path; the kinds of values know it as a `Run`.

    Args:
        project: Where other files are found.
        path: Decisions and events.
        covered: Every function that any path has entered is added here.
    """

    def __init__(self, project: Project, path: Path, covered: set[int]) -> None:
        table.load()
        self.project = project
        self.path = path
        self.covered = covered
        self.state = PathState()
        self.knowledge = Knowledge(path.decide)
        self.loops = Loops(self)
        self.conditions = Conditions(self)
        self.expressions = Expressions(self)
        self.binding = Binding(self)
        self.calls = Calls(self)
        self.blocks = Blocks(self)
        self.imports = Imports(self)
        self.statements = Statements(self)

    @property
    def rounds(self) -> Lengths:
        """What is known of the loops."""
        return self.loops.lengths

    def run(self, statements: list[ast.stmt], scope: Scope) -> None:
        """Execute a block."""
        self.statements.run(statements, scope)

    def evaluate(self, node: ast.expr, scope: Scope) -> Value:
        """The value of an expression."""
        return self.expressions.evaluate(node, scope)

    def bind(self, target: ast.expr, value: Value, scope: Scope) -> None:
        """Assign `value` to a name, an attribute, an item or a tuple of these."""
        self.binding.bind(target, value, scope)

    def call(
        self,
        function: Function,
        given: list[Value],
        named: dict[str, Value],
        at: ast.AST | None = None,
    ) -> Value:
        """Run a function of the project, called `at` some place, and return what it returns."""
        return self.calls.run(function, given, named, at)

    def apply(self, function: Value, call: Call) -> Value:
        """Call anything; what nobody can look into makes what it is given uncertain."""
        return self.calls.apply(function, call)

    def make(self, cls: Class, call: Call) -> Value:
        """An object of a class of the project."""
        return self.calls.make(cls, call)

    def call_external(self, function: External, call: Call) -> Value | None:
        """Call a function from outside of the project; ``None`` if nobody knows what it does."""
        return self.calls.external(function, call)

    def method_of_unknown(self, owner: Unknown, name: str, call: Call) -> Value | None:
        """Call a method of an object that is known by its use alone."""
        return of_unknown(owner, name, call, self)

    def inherited_attribute(self, owner: Instance, name: str) -> Value | None:
        """An attribute that an object of the project has from torch."""
        part = part_of(owner, self)
        return part.attribute(name, self) if part is not None else None

    def known_attribute(self, owner: Unknown, name: str) -> Value | None:
        """An attribute of such an object, if torch gives it a meaning."""
        answer = table.attributes.find(name)
        return answer(owner, self) if answer is not None else None

    def used_as(self, value: Unknown) -> Value:
        """A scaler, optimizer or schedule where the file uses the name as one."""
        return used_as(value, self)

    def is_model(self, owner: Unknown) -> bool:
        """Whether its parameters are asked for, in an optimizer or anywhere in the file."""
        return has_parameters(owner, self)

    def saves_scaler(self) -> bool:
        """Whether the file, or one that it imports, takes the state of a scaler anywhere."""
        return self.project.saves_scaler(self.state.module)

    def site(self, node: ast.AST) -> Place:
        """Place of `node`, or of the call that leads to it from the function that steps."""
        frame, home = self.state.frame, self.state.step_functions
        pairs = zip(frame.functions, home, strict=False)
        shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] is pair[1], pairs))
        module, call = next(iter(frame.sites[shared:]), (None, None))
        if module is None or call is None or self.state.num_steps == 0:
            return self.state.module.place(node)
        return module.place(call)

    def decide(self, question: Hashable, main: bool = True, acts: bool = True) -> bool:
        """Which way a condition goes; the same for the same `question`."""
        return self.knowledge.ask(question, main, acts)

    def answer(self, question: Hashable) -> bool | None:
        """The answer to a question, as far as earlier ones settle it."""
        return self.knowledge.answer(question)

    def fresh(self) -> int:
        """A number that this path has not used."""
        return self.path.fresh()

    def unknown(self, name: str = "", models: Models = NOBODY) -> Unknown:
        """A value of its own that nothing is known about."""
        return Unknown(("new", self.path.fresh()), name, models)

    def give_up(self) -> NoReturn:
        """A framework does the work on this path: nothing can be said about it."""
        raise Silent

    def emit(self, kind: str, node: ast.AST | Place, **fields: Any) -> None:
        """Record an event at `node`."""
        state, facts = self.state, fields.get("facts", {})
        if kind == e.WEIGHTS and facts["models"] <= state.frozen:
            return  # autocast keeps no casts of what needs no gradients
        if kind == state.fails_in:
            state.fails_in = ""
            state.decisions_before_backward = -1
            if kind != e.BACKWARD:
                place = node if isinstance(node, Place) else state.module.place(node)
                self.path.events.append(Event(e.LEFT, place, facts={"raised": True}))
            raise Raised
        if kind == e.BACKWARD:
            state.trained |= roots(facts["models"] or ())
            state.note_backward()
            state.decisions_before_backward = len(self.path.taken)
            state.note_gradients(facts["models"], True)
        elif kind == e.STEP:
            state.num_steps += 1
            state.step_functions = state.frame.functions
        elif kind == e.SCALER and state.gradients_elsewhere is None:
            state.gradients_elsewhere = False  # whatever came before, it is not of this scaler
        elif kind == e.OPTIMIZER:
            self._note_cleared(fields["optimizers"], None, made=True)
        elif kind == e.ZERO_GRAD:
            self._note_cleared(fields.get("optimizers", ()), facts.get("models"))
        elif kind == e.WEIGHTS:
            state.changed |= roots(facts["models"])
        if kind in (e.BACKWARD, e.ZERO_GRAD, e.STEP) and state.frame.chosen:
            facts = {**facts, "chosen": state.frame.chosen}
        if kind in (e.STEP, *_MOVED):
            facts = {**facts, "loops": self.loops.lines(), "rounds": self.loops.indices()}
        if kind in (e.ZERO_GRAD, *_MOVED) and (state.frame.guarded or state.after_skip_test):
            facts = {**facts, "guarded": True}
        if kind == e.ZERO_GRAD:
            chose = len(self.path.taken) > state.decisions_before_backward
            facts = {**facts, "choice" if chose else "unbroken": True}
        if facts:
            fields["facts"] = facts
        place = node if isinstance(node, Place) else state.module.place(node)
        self.path.events.append(Event(kind, place, **fields))

    def _note_cleared(
        self, optimizers: tuple[str, ...], models: Models | None, made: bool = False
    ) -> None:
        for of in [self.state.optimizers.get(o) for o in optimizers] or [models]:
            if not made or (of and self.state.has_gradients(of) is None):
                self.state.note_gradients(of, False)
