"""The source reader: a file -> program paths as events."""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

from halfstep.check.interpreter.certainty import Answers
from halfstep.check.interpreter.ends import LEAVES, PathEnded
from halfstep.check.interpreter.explore import MATTERS, Budget, Path, paths
from halfstep.check.interpreter.machine import Machine
from halfstep.check.source.inventory import last_name
from halfstep.check.source.module import STRONG, Module
from halfstep.check.source.project import Project
from halfstep.check.values.base import Const, Models, Unknown, Value
from halfstep.check.values.objects import Class, Function, Instance, Scope
from halfstep.check.values.owners import owners
from halfstep.check.values.regions import roots
from halfstep.rules import events as e
from halfstep.rules.events import Event
from halfstep.rules.syntax import inside


class Reading(NamedTuple):
    """What some paths through a program have in common.

    Attributes:
        events: What happens on them.
        answers: Of each path, to the questions that nothing settled.
        is_cut: Whether the program goes on where they end.
    """

    events: list[Event]
    answers: list[Answers]
    is_cut: bool

    def trains(self) -> bool:
        """Whether there is a step, or a backward that one may follow."""
        return any(event.kind in (e.BACKWARD, e.STEP) for event in self.events)


def read(module: Module, project: Project) -> Iterator[list[Reading]]:
    """The paths through a file, those of one entry together.

    First the file as a script, with all that it calls; then every function and method that this
    did not reach and in which something happens, callers before the called. Their arguments are
    what their names are used as. One that does a whole step runs twice: the next call is the next
    step.
    """
    project.mark_imports(module)
    covered: set[int] = set()
    budget = Budget()
    yield _explore(module, project, covered, None, budget)
    for node, owner in _definitions(module):
        if (
            id(node) not in covered
            and module.is_root(node)
            and not _only_calls(node, module, covered)
        ):
            yield _explore(module, project, covered, (node, owner), budget)
    for node, owner in _inherited(module, project):
        if id(node) not in covered:
            yield _explore(module, project, covered, (node, owner), budget)


_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _only_calls(node: _Function, module: Module, covered: set[int]) -> bool:
    """Whether all that a function does is to call one that was read, once: another way in."""
    if module.inventory().called[node] & STRONG:
        return False
    nodes = list(inside(node.body))
    acting = [n for n in nodes if isinstance(n, ast.Call) and module.acts(n)]
    if len(acting) != 1 or any(isinstance(n, (ast.For, ast.AsyncFor, ast.While)) for n in nodes):
        return False
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    named = module.index().get(last_name(acting[0].func) or "", ())
    inner = [n for n in named if isinstance(n, kinds)]
    return bool(inner) and all(id(n) in covered for n in inner)


_Root = tuple[_Function, ast.ClassDef | None]


def _explore(
    module: Module, project: Project, covered: set[int], root: _Root | None, budget: Budget
) -> list[Reading]:
    machines: list[Machine] = []
    entered: set[int] = set()
    matters = False

    def run(path: Path) -> None:
        machine = Machine(project, path, entered)
        machines[:] = [machine]
        _run(machine, module, root)

    readings: dict[Hashable, Reading] = {}
    for path, shown in paths(run, budget):
        matters |= any(event.kind in MATTERS for event in path.events)
        if shown not in readings:
            readings[shown] = Reading(resolve(path.events, machines[0]), [], path.is_cut)
        readings[shown].answers.append(path.answers)
    if matters:  # else what was entered may still show something when it is called by itself
        covered |= entered
    return list(readings.values())


def _run(machine: Machine, module: Module, root: _Root | None) -> None:
    scope = Scope(module)
    scope.names["__name__"] = Const("__main__" if root is None else module.name)
    with machine.state.entered(module=module):
        try:
            if root is None:
                machine.run(module.tree.body, scope)
            else:
                _define(machine, module, scope)
                _call(machine, module, scope, root)
        except LEAVES:
            pass


def _define(machine: Machine, module: Module, scope: Scope) -> None:
    """Imports, definitions and constants of the file; its other statements do not run."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
    for node in module.tree.body:
        constant = isinstance(node, ast.Assign) and not any(
            isinstance(inner, (ast.Call, ast.Await)) for inner in ast.walk(node.value)
        )
        if constant or isinstance(node, kinds):
            machine.run([node], scope)


def _call(machine: Machine, module: Module, scope: Scope, root: _Root) -> None:
    node, owner = root
    me = _instance(machine, scope, owner) if owner is not None else None
    function = Function(node, scope, me)
    if me is not None and owner is not None and node not in owner.body:
        function = Function(node, me.cls.home(node.name), me)
    given = [
        _parameter(a, machine)
        for a in [*node.args.posonlyargs, *node.args.args][1 if me is not None else 0 :]
    ]
    machine.call(function, given, {})
    if _is_whole_step(machine.path.events, module):
        machine.call(function, given, {})


def _parameter(node: ast.arg, machine: Machine) -> Value:
    """What nobody has seen being given: by its name alone."""
    return machine.used_as(Unknown(("parameter", node.arg), node.arg))


def _is_whole_step(events: list[Event], module: Module) -> bool:
    """Whether a function does all of a step by itself, so that the next call is the next step."""
    kinds = {event.kind for event in events}
    scalers = {event.scaler for event in events if event.kind == e.STEP and event.scaler}
    if e.SCALER in kinds or not scalers or not {e.BACKWARD, e.ZERO_GRAD} <= kinds:
        return False
    return e.UPDATE in kinds or not module.calls_anywhere("scaler", "update")


def _instance(machine: Machine, scope: Scope, owner: ast.ClassDef) -> Instance:
    cls = scope.names.get(owner.name)
    if not isinstance(cls, Class) or cls.node is not owner:
        cls = Class(owner, scope, [])
    instance = Instance(cls)
    if cls.method_node("__init__") is not None:
        function = instance.attribute("__init__", machine)
        assert isinstance(function, Function)
        spec = function.node.args
        named = {
            a.arg: machine.used_as(Unknown(("parameter", a.arg), a.arg)) for a in spec.args[1:]
        }
        try:
            machine.call(function, [], named)
        except PathEnded:
            raise
        except LEAVES:
            pass
        events = machine.path.events  # nobody knows what came between it and the method
        events[:] = [event for event in events if event.kind == e.LOAD]
    return instance


def _definitions(module: Module) -> list[_Root]:
    """Functions and methods, those that others call last."""
    found: list[_Root] = []
    for node in module.tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.append((node, None))
        elif isinstance(node, ast.ClassDef):
            found += [(m, node) for m in _methods(node)]
    called = module.calls_by_name()
    return sorted(found, key=lambda root: root[0].name in called)


def _inherited(module: Module, project: Project) -> Iterator[_Root]:
    """Loops that a class has from a base, where its own methods do what happens in them."""
    owners_ = [n for n in module.tree.body if isinstance(n, ast.ClassDef) and n.bases]
    owners_ = [n for n in owners_ if any(map(module.is_root, _methods(n)))]
    if not owners_:
        return
    machine, scope = Machine(project, Path(), set()), Scope(module)
    with machine.state.entered(module=module):
        _define(machine, module, scope)
        for owner in owners_:
            cls, own = scope.names.get(owner.name), {method.name for method in _methods(owner)}
            for base in list(cls.ancestry())[1:] if isinstance(cls, Class) else ():
                for method in _methods(base.node):
                    if method.name not in own and _loops_over(method, own):
                        yield method, owner


def _methods(node: ast.ClassDef) -> list[_Function]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [m for m in node.body if isinstance(m, kinds) and m.name != "__init__"]


def _loops_over(method: _Function, names: set[str]) -> bool:
    """Whether a method calls others of its object, by these names, in a loop."""
    loops = [n for n in inside(method.body) if isinstance(n, (ast.For, ast.AsyncFor, ast.While))]
    calls = (n for loop in loops for n in inside(loop.body) if isinstance(n, ast.Call))
    return any(last_name(call.func) in names for call in calls)


def resolve(events: list[Event], machine: Machine) -> list[Event]:
    """Put in which optimizers a backward, clip or edit concerns, and the variables' names."""
    events = [event for event in events if event.kind != e.FORWARD or _counts(event, machine)]
    events = [_with_names(event) for event in events]
    used = (e.STEP, e.UNSCALE, e.ZERO_GRAD, e.ENGINE, e.ENGINE_BACKWARD, e.ENGINE_STEP)
    optimizers = {o: None for ev in events if ev.kind in used for o in ev.optimizers}
    known = {o: machine.state.optimizers.get(o) for o in optimizers}
    return [_resolved(event, known, machine) for event in events]


def _facts(event: Event, machine: Machine) -> dict[str, Any]:
    """Facts for the rules: an autocast is off where the path has found its condition false."""
    facts = {k: v for k, v in event.facts.items() if k not in ("models", "question")}
    if "question" in event.facts and machine.answer(event.facts["question"]) is False:
        facts["enabled"] = False
    return facts


# Events that are about no other models than those that they name.
_BY_HAND = (e.CLIP, e.EDIT, e.ZERO_GRAD, e.BACKWARD)


def _resolved(event: Event, known: dict[str, Models | None], machine: Machine) -> Event:
    names = machine.state.names
    if "models" in event.facts:
        models = event.facts["models"]
        alone = bool(models) and roots(models) <= machine.state.made  # no other name means them
        given = event.kind in (e.CLIP, e.EDIT)
        sure, maybe = owners(models, known, given, alone and event.kind in _BY_HAND)
        event = event._replace(optimizers=sure, maybe=maybe)
    if event.kind in (e.SCALER, e.LOAD, e.SCALE) and event.scaler:
        variable = names.get(event.scaler, event.scaler).split("#")[0]
        event = event._replace(facts={**event.facts, "variable": variable})
    return event._replace(
        scaler=names.get(event.scaler, event.scaler) if event.scaler else None,
        optimizers=tuple(names.get(o, o) for o in event.optimizers),
        maybe=tuple(names.get(o, o) for o in event.maybe),
        facts=_facts(event, machine),
    )


def _counts(forward: Event, machine: Machine) -> bool:
    """Whether a forward is of a model that is trained, or whose weights are changed by hand."""
    if machine.state.changed & roots(forward.facts["models"] or ()):
        return True
    return not forward.fact("no_grad") and _trains(forward, machine)


def _with_names(event: Event) -> Event:
    """`event` with names of the modules that it is about."""
    if event.kind not in (e.FORWARD, e.WEIGHTS):
        return event
    of = tuple(sorted(map(repr, roots(event.facts["models"] or ()))))
    return event._replace(facts={**event.facts, "of": of})


def _trains(forward: Event, machine: Machine) -> bool:
    """Whether a forward is one of a model that a backward reaches anywhere on the path."""
    models = roots(forward.facts["models"] or ())
    params = list(machine.state.optimizers.values())
    if params and all(params) and not any(of and roots(of) & models for of in params):
        return False
    return bool(machine.state.trained & models)
