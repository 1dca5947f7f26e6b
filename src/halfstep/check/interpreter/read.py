"""The source reader: a file -> program paths as events."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfstep.check.interpreter.ends import LEAVES, PathEnded
from halfstep.check.interpreter.explore import MATTERS, Path, paths
from halfstep.check.interpreter.machine import Machine
from halfstep.check.source.inventory import last_name
from halfstep.check.source.module import STRONG, Module
from halfstep.check.source.project import Project
from halfstep.check.values.base import Const, Models, Value
from halfstep.check.values.objects import Class, Function, Instance, Scope
from halfstep.check.values.owners import owners
from halfstep.check.values.regions import roots
from halfstep.rules import events as e
from halfstep.rules.events import Event
from halfstep.rules.syntax import inside


def read(module: Module, project: Project) -> Iterator[list[Event]]:
    """The paths through a file.

    First the file as a script, with all that it calls; then every function and method that this
    did not reach and in which something happens, callers before the called. Their arguments are
    what their names are used as. One that does a whole step runs twice: the next call is the next
    step.
    """
    project.mark_imports(module)
    covered: set[int] = set()
    yield from _explore(module, project, covered, None)
    for node, owner in _definitions(module):
        if (
            id(node) not in covered
            and module.is_root(node)
            and not _only_calls(node, module, covered)
        ):
            yield from _explore(module, project, covered, (node, owner))


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
    module: Module, project: Project, covered: set[int], root: _Root | None
) -> Iterator[list[Event]]:
    machines: list[Machine] = []
    entered: set[int] = set()
    matters = False

    def run(path: Path) -> None:
        machine = Machine(project, path, entered)
        machines[:] = [machine]
        _run(machine, module, root)

    for path in paths(run):
        matters |= any(event.kind in MATTERS for event in path.events)
        yield resolve(path.events, machines[0])
    if matters:  # else what was entered may still show something when it is called by itself
        covered |= entered


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
        constant = isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        if constant or isinstance(node, kinds):
            machine.run([node], scope)


def _call(machine: Machine, module: Module, scope: Scope, root: _Root) -> None:
    node, owner = root
    me: Value | None = None
    if owner is not None:
        me = _instance(machine, scope, owner)
    home = scope
    function = Function(node, home, me)
    given = [
        machine.used_as(machine.unknown(a.arg))
        for a in [*node.args.posonlyargs, *node.args.args][1 if me is not None else 0 :]
    ]
    machine.call(function, given, {})
    if _is_whole_step(machine.path.events, module):
        machine.call(function, given, {})


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
        named = {a.arg: machine.used_as(machine.unknown(a.arg)) for a in spec.args[1:]}
        try:
            machine.call(function, [], named)
        except PathEnded:
            raise
        except LEAVES:
            pass
        machine.path.events.clear()  # nobody knows what came between it and the method
    return instance


def _definitions(module: Module) -> list[_Root]:
    """Functions and methods, those that others call last."""
    found: list[_Root] = []
    for node in module.tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.append((node, None))
        elif isinstance(node, ast.ClassDef):
            methods = [
                m for m in node.body if isinstance(m, (ast.FunctionDef, ast.AsyncFunctionDef))
            ]
            found += [(m, node) for m in methods if m.name != "__init__"]
    called = module.calls_by_name()
    return sorted(found, key=lambda root: root[0].name in called)


def resolve(events: list[Event], machine: Machine) -> list[Event]:
    """Put in which optimizers a backward, clip or edit concerns, and the variables' names."""
    events = [event for event in events if event.kind != e.FORWARD or _counts(event, machine)]
    events = [_with_names(event) for event in events]
    used = (e.STEP, e.UNSCALE, e.ZERO_GRAD, e.ENGINE)
    optimizers = {o: None for ev in events if ev.kind in used for o in ev.optimizers}
    known = {o: machine.state.optimizers.get(o) for o in optimizers}
    return [_resolved(event, known, machine) for event in events]


_BY_HAND = (e.CLIP, e.EDIT, e.ZERO_GRAD)  # they are about the parameters that they are given


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
        facts={k: v for k, v in event.facts.items() if k != "models"},
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
