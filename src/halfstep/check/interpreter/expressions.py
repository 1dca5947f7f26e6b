"""Expressions of the interpreter: values, conditions, items of what is looped over."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from halfstep.check.interpreter.calls import Calls
from halfstep.check.interpreter.operators import Operators
from halfstep.check.source.inventory import last_name
from halfstep.check.torch_models.containers import picked
from halfstep.check.values.kinds import (
    Average,
    Carried,
    Const,
    External,
    Grad,
    Mapping,
    Method,
    Optimizer,
    Params,
    Repeated,
    Scaled,
    Scaler,
    ScaleRead,
    Schedule,
    Sequence,
    SkipTest,
    State,
    Unknown,
    Value,
)
from halfstep.check.values.objects import (
    AVERAGE,
    Class,
    Function,
    Instance,
    Parent,
    ProjectModule,
    Scope,
)
from halfstep.check.values.regions import AT, NAME, SOME, deeper, roots
from halfstep.rules.events import Place

if TYPE_CHECKING:
    from halfstep.check.interpreter.machine import Machine

_BUILTINS = frozenset(dir(builtins))
_METHODS = frozenset(["scale", "step", "unscale_", "update", "update_parameters", "zero_grad"])
_SETTINGS = frozenset(["args", "cfg", "config", "opt", "opts", "hparams", "conf", "self", "params"])


class Expressions:
    """Evaluates expressions for a `Machine`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._calls = Calls(machine, self)
        self._conditions = machine.conditions
        operators = Operators(machine, self)
        self._kinds: dict[type[ast.expr], Callable[[Any, Scope], Value]] = {
            ast.Constant: lambda node, scope: Const(node.value),
            ast.Name: self._name,
            ast.Attribute: self._attribute,
            ast.Call: self._calls.call,
            ast.BinOp: operators.binary,
            ast.BoolOp: self._conditions.either,
            ast.UnaryOp: operators.unary,
            ast.Compare: self._conditions.compare,
            ast.IfExp: operators.choice,
            ast.Tuple: self._sequence,
            ast.List: self._sequence,
            ast.Set: self._sequence,
            ast.Dict: self._dict,
            ast.Subscript: self._subscript,
            ast.Lambda: lambda node, scope: Function(node, scope),
            ast.ListComp: self._comprehension,
            ast.GeneratorExp: self._comprehension,
            ast.SetComp: self._comprehension,
            ast.NamedExpr: self._named,
            ast.Yield: lambda node, scope: machine.blocks.yielded(node, scope),
            ast.Starred: lambda node, scope: self.evaluate(node.value, scope),
            ast.Await: lambda node, scope: self.evaluate(node.value, scope),
        }

    def evaluate(self, node: ast.expr, scope: Scope) -> Value:
        """The value of `node`."""
        kind = self._kinds.get(type(node))
        return kind(node, scope) if kind else self._machine.unknown()

    # Names

    def _name(self, node: ast.Name, scope: Scope) -> Value:
        value = scope.find(node.id)
        if value is None and node.id in _BUILTINS:
            return External(node.id)
        if value is None:
            value = self.used_as(Unknown(("name", node.id), node.id))
            root = scope
            while root.parent is not None:
                root = root.parent
            root.names[node.id] = value
        return value

    def _attribute(self, node: ast.Attribute, scope: Scope) -> Value:
        return self.attribute(self.evaluate(node.value, scope), node.attr)

    def attribute(self, owner: Value, name: str) -> Value:
        """``owner.name``."""
        if isinstance(owner, External):
            return External(f"{owner.name}.{name}")
        if isinstance(owner, ProjectModule):
            return owner.scope.look(name) or External(f"?.{name}")
        if isinstance(owner, Instance):
            return self._member(owner, name)
        if isinstance(owner, Parent):
            return self._inherited(owner, name)
        if isinstance(owner, Params) and name == "grad":
            return Grad(owner.of)
        if isinstance(owner, (Grad, Scaled)) or (isinstance(owner, Params) and name == "data"):
            return owner
        if isinstance(owner, Scaler) and name == "last_outcome":  # of halfstep's own scaler
            return SkipTest(owner, name, self._machine.num_steps)
        if isinstance(owner, Scaler) and name == "_per_optimizer_states":
            return self._machine.skips.found(owner)
        if isinstance(owner, Scaler) and name == "_scale":
            return ScaleRead(owner)
        if isinstance(owner, SkipTest):
            return owner
        if isinstance(owner, Optimizer) and name == "param_groups":
            params = owner.params or frozenset([("optimizer", owner.id)])
            return Sequence([Mapping({"params": Params(params)})])
        if isinstance(owner, Average) and name == "module":
            self._machine.averages.add(("average", owner.id))
            return Unknown(("average", owner.id), name)
        if isinstance(owner, Mapping) and name in owner.items:  # a namespace
            return owner.items[name]
        if isinstance(owner, Instance) and name == "__dict__":
            return Mapping(owner.attributes)
        if isinstance(owner, Unknown) and name == "grad" and self._carries(owner):
            assert self._machine.carrying is not None
            return Carried(self._machine.carrying)
        if isinstance(owner, Unknown):
            root, path = owner.root, deeper(owner.path, NAME, name)
            if owner.name in _SETTINGS:
                root, path = None, ()
            return self.used_as(Unknown(("of", owner.key, name), name, owner.models, root, path))
        if isinstance(owner, (Scaler, Optimizer, Schedule, Average)) and name in _METHODS:
            return Method(owner, name)
        return self._machine.unknown(name, owner.models)

    def _carries(self, owner: Unknown) -> bool:
        """Whether the gradient of something that is no model carries a scale."""
        owned = (roots(of) for of in self._machine.optimizers.values() if of)
        module = self._machine.module
        if self._machine.carrying is None or module is None or module.is_model(owner.name):
            return False
        return not any(owner.root in of for of in owned)

    def _member(self, owner: Instance, name: str) -> Value:
        if name in owner.attributes:
            return owner.attributes[name]
        found = self.class_member(owner.cls, name)
        value: Value
        if isinstance(found, (ast.FunctionDef, ast.AsyncFunctionDef)):
            decorators = {last_name(d) for d in found.decorator_list}
            me = None if "staticmethod" in decorators else owner
            function = Function(found, self._home(owner.cls, name), me)
            if not decorators & {"property", "cached_property"}:
                return function
            value = self._machine.call(function, [], {})
            if "cached_property" in decorators:
                owner.attributes[name] = value
            return value
        if found is not None:
            value = self.evaluate(found, owner.cls.scope)
        else:
            value = self.used_as(Unknown(("of", owner.key, name), name))
        owner.attributes[name] = value
        return value

    def _inherited(self, owner: Parent, name: str) -> Value:
        for base in owner.cls.bases:
            if isinstance(base, Class) and base is not owner.cls:
                found = self.class_member(base, name)
                if isinstance(found, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    return Function(found, self._home(base, name), owner.me)
        return self._machine.unknown(name)

    def class_member(self, cls: Class, name: str) -> Any:
        """Method or value of a class attribute, bases of the project included."""
        for item in cls.node.body:
            if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)) and item.name == name:
                return item
            if isinstance(item, (ast.Assign, ast.AnnAssign)) and item.value is not None:
                targets = item.targets if isinstance(item, ast.Assign) else [item.target]
                if any(isinstance(t, ast.Name) and t.id == name for t in targets):
                    return item.value
        bases = (b for b in cls.bases if isinstance(b, Class) and b is not cls)
        return next((m for base in bases if (m := self.class_member(base, name))), None)

    def _home(self, cls: Class, name: str) -> Scope:
        if cls.method(name) is not None:
            return cls.scope
        bases = (b for b in cls.bases if isinstance(b, Class) and b is not cls)
        return next((self._home(b, name) for b in bases if self.class_member(b, name)), cls.scope)

    def used_as(self, value: Unknown) -> Value:
        """A scaler, optimizer or schedule where the file uses the name as one."""
        module = self._machine.module
        kind = module.kind_of(value.name) if module is not None and value.name else None
        if kind is None:
            return value
        name = self._machine.name_of(value)
        if kind == "scaler":
            return Scaler(name)
        if kind == "optimizer":
            self._machine.optimizers.setdefault(name, value.models or None)
            return Optimizer(name, value.models or None)
        return Schedule(name, None)

    def named(self, value: Value, target: ast.expr) -> Value:
        """`value` as it is once it has a variable: its name, and what that is used as."""
        name = last_name(target)
        if name is None:
            return value
        if isinstance(value, (Scaler, Optimizer, Schedule, Average)):
            self._machine.give_name(value.id, ast.unparse(target))
        if isinstance(value, Unknown) and value.name != name:
            fresh = Unknown(value.key, name, value.models, value.root, value.path)
            used = self.used_as(fresh)
            return used if used is not fresh or AVERAGE.search(name) else value
        return value

    # Containers

    def _sequence(self, node: ast.Tuple | ast.List | ast.Set, scope: Scope) -> Value:
        return Sequence([self.evaluate(item, scope) for item in node.elts])

    def _dict(self, node: ast.Dict, scope: Scope) -> Value:
        items: dict[Any, Value] = {}
        for key, item in zip(node.keys, node.values, strict=True):
            value = self.evaluate(item, scope)
            if key is None:
                items.update(value.items if isinstance(value, Mapping) else {"**": value})
                continue
            if isinstance(value, State) and isinstance(item, ast.Call):
                value.entry = self._place(item)
            items[key.value if isinstance(key, ast.Constant) else ("?", self.count())] = value
        return Mapping(items)

    def _place(self, node: ast.expr) -> Place:
        assert self._machine.module is not None
        return self._machine.module.place(node)

    def _subscript(self, node: ast.Subscript, scope: Scope) -> Value:
        owner = self.evaluate(node.value, scope)
        at = self.evaluate(node.slice, scope)
        index = at.value if isinstance(at, Const) else None
        if isinstance(owner, Mapping) and index in owner.items:
            return owner.items[index]
        if isinstance(owner, Sequence) and isinstance(index, int) and owner.items:
            return owner.items[index] if -len(owner.items) <= index < len(owner.items) else owner
        if isinstance(owner, (Params, Grad, Scaled, Carried, SkipTest)):
            return owner
        if isinstance(owner, State) and owner.kind == "scaler" and index == "scale":
            return ScaleRead(Scaler(owner.owner))
        if isinstance(owner, Unknown):
            name = index if isinstance(index, str) else ""
            key = ("at", owner.key, repr(index)) if index is not None else ("new", self.count())
            text = ast.unparse(node.slice)
            path = deeper(owner.path, AT if index is not None else SOME, text)
            return self.used_as(Unknown(key, name, owner.models, owner.root, path))
        return self._machine.unknown(models=owner.models)

    def count(self) -> int:
        """A number of its own."""
        return self._machine.path.fresh()

    def _comprehension(
        self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp, scope: Scope
    ) -> Value:
        inner = Scope(scope.module, scope)
        first = node.generators[0]
        over = self.evaluate(first.iter, inner)
        results = []
        for item in self._machine.loops.items(over, 1):
            self._machine.binding.bind(first.target, item, inner)
            for more in node.generators[1:]:
                inside = next(self._machine.loops.items(self.evaluate(more.iter, inner), 1), None)
                if inside is not None:
                    self._machine.binding.bind(more.target, inside, inner)
            results.append(picked(self.evaluate(node.elt, inner), node))
        if len(results) != 1:
            return Sequence(results)
        plain = isinstance(results[0], (Unknown, Const, Sequence))
        return Repeated(results[0]) if plain else results[0]

    def _named(self, node: ast.NamedExpr, scope: Scope) -> Value:
        value = self.evaluate(node.value, scope)
        self._machine.binding.bind(node.target, value, scope)
        return value

    def item(self, value: Value, index: int) -> Value:
        """What the `index`-th name of a tuple on the left gets."""
        if isinstance(value, Sequence) and index < len(value.items):
            return value.items[index]
        if isinstance(value, Instance) and index < len(value.attributes):  # a named tuple
            return list(value.attributes.values())[index]
        if isinstance(value, Carried) or (isinstance(value, Params) and index):  # after its name
            return value
        if isinstance(value, Unknown):
            return Unknown(("at", value.key, repr(index)), "", value.models)
        return self._machine.unknown(models=value.models)
