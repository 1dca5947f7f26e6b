"""Calls of the interpreter: what is called, followed if it is the project's own."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from halfstep.check.interpreter.arguments import Call, Given, is_field, training_objects
from halfstep.check.torch_models.functions import Functions
from halfstep.check.torch_models.methods import Methods
from halfstep.check.values.kinds import (
    NOBODY,
    Carried,
    External,
    Grad,
    Method,
    Models,
    Optimizer,
    Partial,
    Scaled,
    Scaler,
    Sequence,
    Unknown,
    Value,
)
from halfstep.check.values.objects import Class, Function, Instance, Parent, Scope, parts_of
from halfstep.rules import events as e

if TYPE_CHECKING:
    from halfstep.check.interpreter.expressions import Expressions
    from halfstep.check.interpreter.machine import Machine


class Calls:
    """Evaluates calls for a `Machine`."""

    def __init__(self, machine: Machine, expressions: Expressions) -> None:
        self._machine = machine
        self._expressions = expressions
        self._methods = Methods(machine)
        self._functions = Functions(machine, self._methods)

    def call(self, node: ast.Call, scope: Scope) -> Value:
        """Evaluate a call."""
        call = Call(node, scope, self._expressions)
        if isinstance(node.func, ast.Name) and node.func.id == "super":
            return self._parent(scope)
        if isinstance(node.func, ast.Attribute):
            owner = self._expressions.evaluate(node.func.value, scope)
            if isinstance(owner, Instance) and not self._is_own(owner, node.func.attr):
                result = self._inherited(owner, node.func.attr, call)
                if result is not None:
                    return result
            if self._methods.knows(owner):
                result = self._methods.call(owner, node.func.attr, call)
                return result if result is not None else self._opaque(call, owner)
            if isinstance(owner, Instance) and owner.cls.is_average():
                self._average(owner, node.func.attr, call)
            function = self._expressions.attribute(owner, node.func.attr)
            if isinstance(owner, Parent) and not isinstance(function, Function):
                call.evaluate_all()  # a base class from outside keeps what it is given
                return self._machine.unknown(node.func.attr)
        else:
            function = self._expressions.evaluate(node.func, scope)
        return self._apply(function, call)

    def _average(self, owner: Instance, method: str, call: Call) -> None:
        """A moving average of the project's own moves; its code is followed as well."""
        if method in ("update", "update_parameters") and call.count():
            models = NOBODY.union(*(parts_of(v) for v in call.all()))
            name = f"{owner.cls.node.name}#{owner.number}"
            self._machine.emit(e.EMA, call.node, model=name, facts={"models": models or None})

    def _is_own(self, owner: Instance, method: str) -> bool:
        """Whether an object has a method from the project."""
        own = method in owner.attributes or self._expressions.class_member(owner.cls, method)
        return bool(own)

    def _inherited(self, owner: Instance, method: str, call: Call) -> Value | None:
        """A method that an object has from torch, if it is a module or an optimizer."""
        if owner.cls.is_module():
            return self._methods.of_module(owner, method, call)
        optimizer = self._methods.as_optimizer(owner)
        return self._methods.call(optimizer, method, call) if optimizer is not None else None

    def _apply(self, function: Value, call: Call) -> Value:
        if isinstance(function, Function):
            return self._machine.call(function, call.given(), call.named())
        if isinstance(function, Method):
            result = self._methods.call(function.owner, function.name, call)
            return result if result is not None else self._opaque(call, function)
        if isinstance(function, Partial):
            return self._partial(function, call)
        if isinstance(function, Class):
            return self._instance(function, call)
        if isinstance(function, External) and function.name == "map" and call.count() == 2:
            return self._mapped(call)
        if isinstance(function, External):
            return self._functions.call(function, call) or self._opaque(call, function)
        if isinstance(function, Instance) and not function.cls.is_module():
            member = self._expressions.class_member(function.cls, "__call__")
            if member is not None:
                return self._apply(self._expressions.attribute(function, "__call__"), call)
        if isinstance(function, Instance):
            return self._forward(parts_of(function), call)
        if isinstance(function, Unknown):
            result = self._methods.of_unknown(function, "__call__", call)
            return result or self._opaque(call, function)
        return self._opaque(call, function)

    def _mapped(self, call: Call) -> Value:
        """``map(function, items)``, made at once."""
        function, items = call.given() if len(call.given()) == 2 else (None, None)
        if isinstance(items, Sequence) and isinstance(function, (Function, Method, Partial)):
            node = ast.copy_location(ast.Call(call.node.args[0], [], []), call.node)
            return Sequence([self._apply(function, Given(node, [i], {})) for i in items.items])
        return self._opaque(call, External("map"))

    def _partial(self, partial: Partial, call: Call) -> Value:
        given = [*partial.given, *call.given()]
        named = {**partial.named, **call.named()}
        if isinstance(partial.function, Function):
            return self._machine.call(partial.function, given, named)
        node = ast.copy_location(ast.Call(call.node.func, [], []), call.node)
        return self._apply(partial.function, Given(node, given, named))

    def _parent(self, scope: Scope) -> Value:
        """``super()``: the class that holds the running method, and the instance."""
        node = self._machine.stack[-1] if self._machine.stack else None
        me = scope.find(node.args.args[0].arg) if node is not None and node.args.args else None
        if not isinstance(me, Instance):
            return self._machine.unknown("super")
        homes = (cls for cls in me.cls.ancestry() if node in cls.node.body)
        return Parent(next(homes, me.cls), me)

    def _instance(self, cls: Class, call: Call) -> Value:
        instance = Instance(cls)
        initializer = self._expressions.class_member(cls, "__init__")
        module = self._machine.module
        if initializer is not None:
            function = self._expressions.attribute(instance, "__init__")
            if isinstance(function, Function):
                self._machine.call(function, call.given(), call.named())
        elif module is not None:  # a dataclass
            names = [n.target.id for n in cls.node.body if is_field(n)]  # type: ignore[attr-defined]
            instance.attributes.update(zip(names, call.given(), strict=False))
            instance.attributes.update(call.named())
        return instance

    def _forward(self, models: Models, call: Call) -> Value:
        values = call.all()
        if self._machine.no_grad:
            return self._machine.unknown()
        self._machine.emit(e.FORWARD, call.node, facts={"models": models})
        return self._machine.unknown(models=models.union(*(v.models for v in values)))

    def _opaque(self, call: Call, owner: Value) -> Value:
        """A call that nobody can look into; what it was given is not certain any more."""
        values = [owner, *call.all()]
        if any(isinstance(v, Grad) for v in values):
            return self._machine.unknown()
        inside = [part for value in values for part in training_objects(value)]
        scalers = [p.id for p in inside if isinstance(p, Scaler)]
        scalers += [p.scaler.id for p in inside if isinstance(p, Scaled)]
        optimizers = tuple(p.id for p in inside if isinstance(p, Optimizer))
        if scalers or optimizers:
            scaler = scalers[0] if scalers else None
            self._machine.emit(e.OPAQUE, call.node, scaler=scaler, optimizers=optimizers)
        models = NOBODY.union(*(v.models for v in values))
        scaled = [p for p in inside if isinstance(p, Scaled)]
        if scaled and isinstance(owner, External) and owner.name.endswith("autograd.grad"):
            return Carried(scaled[0].scaler)
        return self._machine.unknown(models=models)
