"""The interpreter: one path through a program, statement by statement.

It knows what a training step is made of and nothing else: every other value is opaque. Functions
and methods of the project are followed when they are called; loops run twice (four or five times
where a condition counts micro-batches); a branch in which nothing can happen costs no decision.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable
from typing import Any

from halfstep.check.interpreter.binding import Binding
from halfstep.check.interpreter.blocks import Blocks, Manager
from halfstep.check.interpreter.conditions import Conditions
from halfstep.check.interpreter.explore import Path, Raised
from halfstep.check.interpreter.expressions import Expressions
from halfstep.check.interpreter.imports import Imports
from halfstep.check.interpreter.loops import Loops
from halfstep.check.interpreter.repeats import Repeats
from halfstep.check.source.module import Module
from halfstep.check.source.project import Project
from halfstep.check.source.shapes import is_abstract, is_manager, leaves
from halfstep.check.torch_models.clips import Clips
from halfstep.check.torch_models.skips import Skips
from halfstep.check.values.kinds import Const, Context, Models, Scaler, Sequence, Unknown, Value
from halfstep.check.values.objects import Class, Function, FunctionNode, Scope
from halfstep.check.values.regions import roots
from halfstep.rules import events as e
from halfstep.rules.events import Event

MAX_DEPTH = 14
NONE = Const(None)


class Returned(Exception):  # noqa: N818
    """A ``return`` on its way to the call."""

    def __init__(self, value: Value) -> None:
        self.value = value


class LoopLeft(Exception):  # noqa: N818
    """A ``break``."""


class LoopContinued(Exception):  # noqa: N818
    """A ``continue``."""


class Machine:
    """Runs statements of a program on one path.

    Args:
        project: Where other files are found.
        path: Decisions and events.
        covered: Every function that any path has entered is added here.
    """

    LEAVES = (Returned, LoopLeft, LoopContinued, Raised)

    def __init__(self, project: Project, path: Path, covered: set[int]) -> None:
        self.project = project
        self.path = path
        self.covered = covered
        self.stack: list[FunctionNode] = []
        self.module: Module | None = None
        self.no_grad = 0
        self.finite_known = False
        self.failed = False  # whether something has raised: once is enough on one path
        self.fails_in_backward = 0  # whether the next backward raises
        self.num_steps = 0
        self.loops = Loops(self)
        self.tests_seen = 0  # whether an update was skipped
        self.chosen = 0  # depth of branches that the path chose without knowing
        self.guarded = 0  # depth of branches under such a test
        self._after_test = False  # the other branch of such a test has left
        self.optimizers: dict[str, Models | None] = {}
        self.carrying: Scaler | None = None  # whose scale the last backward had
        self.trained: set[Hashable] = set()  # modules that a backward has reached
        self.averages: set[Hashable] = set()  # moving averages of modules
        self.names: dict[str, str] = {}  # provisional name of an object to that of its variable
        self.conditions = Conditions(self)
        self.expressions = Expressions(self)
        self.binding = Binding(self)
        self.imports = Imports(self)
        self.repeats = Repeats(self)
        self.skips = Skips(self)
        self.blocks = Blocks(self)
        self.clips = Clips(self)
        self._statements = self._handlers()

    def _handlers(self) -> dict[type[ast.stmt], Callable[[Any, Scope], None]]:
        return {
            ast.Expr: self._expr,
            ast.Assign: self._assign,
            ast.AnnAssign: self._assign_one,
            ast.AugAssign: self.binding.augment,
            ast.If: self._if,
            ast.For: self._loop,
            ast.AsyncFor: self._loop,
            ast.While: self._loop,
            ast.With: self.blocks.run,
            ast.AsyncWith: self.blocks.run,
            ast.Try: self._try,
            ast.FunctionDef: self._define,
            ast.AsyncFunctionDef: self._define,
            ast.ClassDef: self._define_class,
            ast.Import: self._import,
            ast.ImportFrom: self._import,
            ast.Return: self._return,
            ast.Global: self._global,
            ast.Nonlocal: self._global,
        }

    def emit(self, kind: str, node: ast.AST, **fields: Any) -> None:
        """Record an event at `node`."""
        assert self.module is not None
        if kind == e.BACKWARD and self.fails_in_backward:
            self.fails_in_backward = 0
            raise Raised
        if kind == e.BACKWARD:
            self.trained |= roots(fields["facts"]["models"] or ())
            self.finite_known = False
            self.skips.note_backward()
            self._after_test = False
        elif kind == e.STEP:
            self.num_steps += 1
        if kind in (e.STEP, e.SCHEDULE, e.EMA):
            fields["facts"] = {**fields.get("facts", {}), "loops": tuple(self.loops.lines)}
        if kind in (e.SCHEDULE, e.EMA, e.ZERO_GRAD) and (self.guarded or self._after_test):
            fields["facts"] = {**fields.get("facts", {}), "guarded": True}
        self.path.events.append(Event(kind, self.module.place(node), **fields))

    # Statements

    def run(self, statements: list[ast.stmt], scope: Scope) -> None:
        """Execute a block."""
        for statement in statements:
            self.path.tick()
            execute = self._statements.get(type(statement))
            if execute is not None:
                execute(statement, scope)
            elif isinstance(statement, ast.Break):
                raise LoopLeft
            elif isinstance(statement, ast.Continue):
                raise LoopContinued
            elif isinstance(statement, ast.Raise):
                raise Raised
            elif isinstance(statement, ast.Match):
                self._match(statement, scope)

    def _expr(self, node: ast.Expr, scope: Scope) -> None:
        self.expressions.evaluate(node.value, scope)

    def _assign(self, node: ast.Assign, scope: Scope) -> None:
        value = self.expressions.evaluate(node.value, scope)
        for target in node.targets:
            self.binding.bind(target, value, scope)

    def _assign_one(self, node: ast.AnnAssign, scope: Scope) -> None:
        if node.value is not None:
            self.binding.bind(node.target, self.expressions.evaluate(node.value, scope), scope)

    def _if(self, node: ast.If, scope: Scope) -> None:
        assert self.module is not None
        matters = any(map(self.module.relevant, (*node.body, *node.orelse)))
        if not matters:
            self.expressions.evaluate(node.test, scope)
            self.binding.enter_weak()
            try:
                self.run(node.body, scope)
            finally:
                self.binding.weak -= 1
            return
        seen, asked = self.tests_seen, self.conditions.asked
        chosen, other = node.body, node.orelse
        acts = any(map(self.module.acts, (*node.body, *node.orelse)))
        if not self.conditions.holds(node.test, scope, not leaves(node.body), acts):
            chosen, other = other, chosen
        tested, chose = self.tests_seen > seen, self.conditions.asked > asked
        self.guarded += tested
        self.chosen += chose
        try:
            self.run(chosen, scope)
        finally:
            self.guarded -= tested
            self.chosen -= chose
        self._after_test |= tested and bool(other) and leaves(other)

    def _match(self, node: ast.Match, scope: Scope) -> None:
        subject = self.expressions.evaluate(node.subject, scope)
        for i, case in enumerate(node.cases):
            last = i == len(node.cases) - 1
            if last or self.path.decide(("case", subject.key, ast.dump(case.pattern))):
                self.run(case.body, scope)
                return

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, scope: Scope) -> None:
        if self.loops.run(node, scope):
            self.run(node.orelse, scope)

    def run_round(self, body: list[ast.stmt], scope: Scope) -> bool:
        """One round of a loop; whether another may follow."""
        try:
            self.run(body, scope)
        except LoopContinued:
            return True
        except LoopLeft:
            return False
        return True

    def _try(self, node: ast.Try, scope: Scope) -> None:
        assert self.module is not None
        handlers = [h for h in node.handlers if any(map(self.module.relevant, h.body))]
        try:
            trains = self._trains(node)
            fails = bool(handlers) and not self.failed and self._fails(trains)
            self.failed |= fails
            if fails and not trains:
                self.run(handlers[0].body, scope)
                return
            self.fails_in_backward += fails
            try:
                self.run(node.body, scope)
            except Raised:
                if not node.handlers:
                    raise
                self.run((handlers or node.handlers)[0].body, scope)
                return
            finally:
                self.fails_in_backward = 0
            self.run(node.orelse, scope)
        finally:
            self.run(node.finalbody, scope)

    def _fails(self, acts: bool) -> bool:
        return self.path.decide(("raises", self.path.fresh()), False, acts)

    def _trains(self, node: ast.Try) -> bool:
        """Whether memory may run out half-way through the body: in its backward."""
        assert self.module is not None
        names = self.module.called_names(node)
        return "backward" in names or bool(names & (self.module.acting() | self.module.imported))

    def _define(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> None:
        scope.set(node.name, Function(node, scope))

    def _define_class(self, node: ast.ClassDef, scope: Scope) -> None:
        bases = [self.expressions.evaluate(base, scope) for base in node.bases]
        scope.set(node.name, Class(node, scope, bases))

    def _import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        self.imports.bind(node, scope)

    def _return(self, node: ast.Return, scope: Scope) -> None:
        value = self.expressions.evaluate(node.value, scope) if node.value is not None else NONE
        raise Returned(value)

    def _global(self, node: ast.Global | ast.Nonlocal, scope: Scope) -> None:
        scope.globals_.update(node.names)

    # Calls of the project's own functions

    def call(self, function: Function, given: list[Value], named: dict[str, Value]) -> Value:
        """Run a function of the project and return what it returns."""
        node = function.node
        if node in self.stack or len(self.stack) >= MAX_DEPTH:
            return self.unknown("recursion")
        if is_manager(node):
            return Manager(function, given, named)
        run = self.call_body
        return self.repeats.call(function, given, named, lambda: run(function, given, named))

    def call_body(self, function: Function, given: list[Value], named: dict[str, Value]) -> Value:
        """Run its body, whatever it is and was called with before."""
        node = function.node
        scope = Scope(function.scope.module, function.scope)
        arguments = [function.me, *given] if function.me is not None else given
        self._bind_arguments(node.args, arguments, named, scope)
        self.covered.add(id(node))
        before, self.module = self.module, function.scope.module
        frame, self.binding.frame = self.binding.frame, self.binding.weak
        self.stack.append(node)
        try:
            return self._body(node, scope)
        finally:
            self.stack.pop()
            self.module, self.binding.frame = before, frame

    def _body(self, node: FunctionNode, scope: Scope) -> Value:
        if isinstance(node, ast.Lambda):
            return self.expressions.evaluate(node.body, scope)
        if is_abstract(node):
            return self.unknown(node.name)  # what a subclass in some other file does
        contexts = [self.expressions.evaluate(d, scope) for d in node.decorator_list]
        active = [c for c in contexts if isinstance(c, Context)]
        for context in active:
            self.blocks.enter(context, node)
        try:
            self.run(node.body, scope)
        except Returned as returned:
            return returned.value
        finally:
            for context in reversed(active):
                self.blocks.leave(context, node)
        return NONE

    def _bind_arguments(
        self, spec: ast.arguments, given: list[Value], named: dict[str, Value], scope: Scope
    ) -> None:
        listed = [*spec.posonlyargs, *spec.args]
        defaults = dict(zip(reversed(listed), reversed(spec.defaults), strict=False))
        only = dict(zip(spec.kwonlyargs, spec.kw_defaults, strict=True))
        for parameter, value in zip(listed, given, strict=False):
            scope.names[parameter.arg] = value
        for parameter in [*listed[len(given) :], *spec.kwonlyargs]:
            default = defaults.get(parameter) or only.get(parameter)
            scope.names[parameter.arg] = self._argument(parameter.arg, named, default, scope)
        if spec.vararg:
            scope.names[spec.vararg.arg] = Sequence(given[len(listed) :])
        if spec.kwarg:
            scope.names[spec.kwarg.arg] = self.unknown(spec.kwarg.arg)

    def _argument(
        self, name: str, named: dict[str, Value], default: ast.expr | None, scope: Scope
    ) -> Value:
        if name in named:
            return named[name]
        if default is not None and scope.parent is not None:
            return self.expressions.evaluate(default, scope.parent)
        return self.unknown(name)

    def give_name(self, id_: str, variable: str) -> None:
        """Show an object under its first variable, each object under a name of its own."""
        if id_ not in self.names:
            others = sum(name.split("#")[0] == variable for name in self.names.values())
            self.names[id_] = f"{variable}#{others + 1}" if others else variable

    def name_of(self, value: Unknown) -> str:
        """Of a scaler, optimizer or schedule that only its use shows: one per object."""
        if isinstance(value.key, tuple) and value.key[0] == "new":
            own = f"{value.name}#{value.key[1]}"
            self.names[own] = value.name
            return own
        return value.name

    def unknown(self, name: str = "", models: Models = frozenset()) -> Unknown:
        """A value of its own that nothing is known about."""
        return Unknown(("new", self.path.fresh()), name, models)
