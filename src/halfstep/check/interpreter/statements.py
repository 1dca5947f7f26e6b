"""Statements of the interpreter."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from halfstep.check.interpreter.ends import LoopContinued, LoopLeft, Raised, Returned
from halfstep.check.source.inventory import last_name
from halfstep.check.source.shapes import leaves
from halfstep.check.values.base import Const
from halfstep.check.values.objects import Class, Function, Scope
from halfstep.rules import events as e

if TYPE_CHECKING:
    from halfstep.check.interpreter.machine import Machine


class Statements:
    """Executes statements for a `Machine`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._kinds: dict[type[ast.stmt], Callable[[Any, Scope], None]] = {
            ast.Expr: self._expr,
            ast.Assign: self._assign,
            ast.AnnAssign: self._assign_one,
            ast.AugAssign: machine.binding.augment,
            ast.If: self._if,
            ast.For: self._loop,
            ast.AsyncFor: self._loop,
            ast.While: self._loop,
            ast.With: machine.blocks.run,
            ast.AsyncWith: machine.blocks.run,
            ast.Try: self._try,
            ast.Match: self._match,
            ast.FunctionDef: self._define,
            ast.AsyncFunctionDef: self._define,
            ast.ClassDef: self._define_class,
            ast.Import: machine.imports.bind,
            ast.ImportFrom: machine.imports.bind,
            ast.Return: self._return,
            ast.Break: self._break,
            ast.Continue: self._continue,
            ast.Raise: self._raise,
            ast.Delete: self._delete,
            ast.Global: self._global,
            ast.Nonlocal: self._global,
        }

    def run(self, statements: list[ast.stmt], scope: Scope) -> None:
        """Execute a block."""
        tick = self._machine.path.tick
        for statement in statements:
            tick()
            execute = self._kinds.get(type(statement))
            if execute is not None:
                execute(statement, scope)

    def _expr(self, node: ast.Expr, scope: Scope) -> None:
        self._machine.evaluate(node.value, scope)

    def _assign(self, node: ast.Assign, scope: Scope) -> None:
        value = self._machine.evaluate(node.value, scope)
        for target in node.targets:
            self._machine.bind(target, value, scope)

    def _assign_one(self, node: ast.AnnAssign, scope: Scope) -> None:
        if node.value is not None:
            self._machine.bind(node.target, self._machine.evaluate(node.value, scope), scope)

    def _if(self, node: ast.If, scope: Scope) -> None:
        state, module = self._machine.state, self._machine.state.module
        branches = (*node.body, *node.orelse)
        if not any(map(module.relevant, branches)):
            truth = self._machine.conditions.known(node.test, scope)
            if truth is not None:
                self.run(node.body if truth else node.orelse, scope)
                return
            with state.entered_uncertain():
                self.run(node.body, scope)
            return
        tests, choices = state.num_skip_tests, state.num_choices
        chosen, other = node.body, node.orelse
        acts = any(map(module.acts, branches))
        self._note_missed_load(node, scope)
        if not self._machine.conditions.holds(node.test, scope, not leaves(node.body), acts):
            chosen, other = other, chosen
        tested, chose = state.num_skip_tests > tests, state.num_choices > choices
        with state.entered_branch(tested, chose):
            self.run(chosen, scope)
        if chose and any(map(module.steps, other)) and not any(map(module.acts, chosen)):
            self._machine.emit(e.LEFT, chosen[-1] if chosen else node.test)
        state.after_skip_test |= tested and bool(other) and leaves(other)

    def _note_missed_load(self, node: ast.If, scope: Scope) -> None:
        """``if self.scaler is not None: self.scaler.load_state_dict(...)``, where it is None."""
        for call in _loads(node.body):
            owner = ast.unparse(call.func.value)  # type: ignore[attr-defined]
            named = (n for n in ast.walk(node.test) if isinstance(n, (ast.Attribute, ast.Name)))
            test = next((n for n in named if ast.unparse(n) == owner), None)
            if isinstance(test, ast.Name) and not self._should_be_there(test):
                continue
            if test is not None and self._machine.evaluate(test, scope).is_none(self._machine):
                facts = {"missed": True, "variable": owner}
                self._machine.emit(e.LOAD, call, facts=facts)

    def _should_be_there(self, node: ast.Name) -> bool:
        """Whether a scaler that is not given to a function has a state that waits for it."""
        functions = self._machine.state.frame.functions
        given = functions and any(
            isinstance(n, ast.arg) and n.arg == node.id for n in ast.walk(functions[-1].args)
        )
        kept = self._machine.saves_scaler() or self._machine.state.module.keeps_scaler()
        return not given or kept

    def _match(self, node: ast.Match, scope: Scope) -> None:
        subject = self._machine.evaluate(node.subject, scope)
        for case in node.cases:
            if self._machine.conditions.takes(case, subject, scope):
                self.run(case.body, scope)
                return

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, scope: Scope) -> None:
        if self._machine.loops.run(node, scope):
            self.run(node.orelse, scope)

    def _try(self, node: ast.Try, scope: Scope) -> None:
        state = self._machine.state
        trains = self._trains(node)
        handlers = [h for h in node.handlers if self._matters(h, trains)]
        try:
            fails = bool(handlers) and not state.has_failed and self._fails(trains)
            state.has_failed |= fails
            if fails and not trains:
                self.run(handlers[0].body, scope)
                return
            state.fails_in = self._point(node) if fails else state.fails_in
            try:
                self.run(node.body, scope)
            except Raised:
                if not node.handlers:
                    raise
                with state.entered_branch(chosen=True):
                    self.run((handlers or node.handlers)[0].body, scope)
                return
            finally:
                state.fails_in = ""
            self.run(node.orelse, scope)
        finally:
            self.run(node.finalbody, scope)

    def _matters(self, handler: ast.ExceptHandler, trains: bool) -> bool:
        """Whether what follows an exception is another training step, or one left half done."""
        if trains and not isinstance(handler.body[-1], ast.Raise):
            return True
        return any(map(self._machine.state.module.relevant, handler.body))

    def _fails(self, acts: bool) -> bool:
        return self._machine.decide(("raises", self._machine.fresh()), False, acts)

    def _point(self, node: ast.Try) -> str:
        """Where the body runs out of memory: in its backward, or when a step makes its state."""
        module = self._machine.state.module
        if "unscale_" not in module.text:
            return e.BACKWARD
        own = module.called_names(node)
        if "unscale_" in own and "step" not in own:  # in the clip behind it, at the latest
            point = e.CLIP
        elif self._tries_again(node):
            point = e.STEP
        else:
            return e.BACKWARD
        return point if self._machine.decide(("in step", node), True) else e.BACKWARD

    def _tries_again(self, node: ast.Try) -> bool:
        """Whether the same window follows an exception: in a handler, or in the next round."""
        module = self._machine.state.module
        if any(any(map(module.acts, h.body)) and not leaves(h.body) for h in node.handlers):
            acting = [n for h in node.handlers for s in h.body for n in ast.walk(s)]
            if any(last_name(n.func) == "backward" for n in acting if isinstance(n, ast.Call)):
                return True
        loops = self._machine.state.frame.loops
        if not loops or not any(n is node for s in loops[-1].node.body for n in ast.walk(s)):
            return False
        if isinstance(loops[-1].node, ast.While):
            return True
        return isinstance((node.orelse or node.body)[-1], (ast.Break, ast.Return))

    def _trains(self, node: ast.Try) -> bool:
        """Whether memory may run out half-way through the body: in its backward."""
        module = self._machine.state.module
        names = module.called_names(node)
        return "backward" in names or bool(names & (module.acting() | module.imported))

    def _define(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> None:
        scope.set(node.name, Function(node, scope))

    def _define_class(self, node: ast.ClassDef, scope: Scope) -> None:
        bases = [self._machine.evaluate(base, scope) for base in node.bases]
        scope.set(node.name, Class(node, scope, bases))

    def _return(self, node: ast.Return, scope: Scope) -> None:
        evaluate = self._machine.evaluate
        value = evaluate(node.value, scope) if node.value is not None else Const(None)
        self._note_left(node)
        raise Returned(value)

    def _break(self, node: ast.Break, scope: Scope) -> None:
        self._note_left(node)
        raise LoopLeft

    def _continue(self, node: ast.Continue, scope: Scope) -> None:
        self._note_left(node)
        raise LoopContinued

    def _delete(self, node: ast.Delete, scope: Scope) -> None:
        for target in node.targets:
            if isinstance(target, ast.Attribute):
                self._machine.bind(target, Const(None), scope)

    def _note_left(self, node: ast.stmt) -> None:
        if self._machine.state.frame.chosen:
            self._machine.emit(e.LEFT, node)

    def _raise(self, node: ast.Raise, scope: Scope) -> None:
        raise Raised

    def _global(self, node: ast.Global | ast.Nonlocal, scope: Scope) -> None:
        scope.globals_.update(node.names)


def _loads(body: list[ast.stmt]) -> Iterator[ast.Call]:
    for statement in body:
        call = statement.value if isinstance(statement, ast.Expr) else None
        method = call.func if isinstance(call, ast.Call) else None
        if isinstance(method, ast.Attribute) and method.attr == "load_state_dict":
            assert isinstance(call, ast.Call)
            yield call
