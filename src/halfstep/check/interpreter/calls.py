"""Calls of the interpreter: what is called, followed if it is the project's own."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from halfstep.check.interpreter.blocks import Manager
from halfstep.check.interpreter.ends import Returned
from halfstep.check.interpreter.repeats import Repeats
from halfstep.check.source.inventory import last_name
from halfstep.check.source.shapes import is_abstract, is_manager
from halfstep.check.torch_models import averages, models, own, table
from halfstep.check.torch_models.contexts import Context
from halfstep.check.torch_models.gradients import Grad
from halfstep.check.torch_models.optimizers import Optimizer
from halfstep.check.torch_models.scalers import Scaler
from halfstep.check.torch_models.scales import Scaled
from halfstep.check.values.base import NOBODY, Const, External, Unknown, Value
from halfstep.check.values.call import Call, has_training_objects, makes_new
from halfstep.check.values.containers import Sequence
from halfstep.check.values.objects import Class, Function, Instance, Parent, Scope
from halfstep.check.values.state import FunctionNode
from halfstep.rules import events as e

if TYPE_CHECKING:
    from halfstep.check.interpreter.machine import Machine

MAX_DEPTH = 14
# Packages whose functions give nothing of what they are given but what it depends on.
_KNOWN = ("torch.", "F.", "nn.", "np.", "math.", "os.")
_HARMLESS_WORDS = """
    print len str int float min max sum abs isinstance hasattr round type id repr callable
    issubclass
"""
_HARMLESS = frozenset(_HARMLESS_WORDS.split())


class Calls:
    """Evaluates calls for a `Machine`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._repeats = Repeats(machine)

    def evaluate(self, node: ast.Call, scope: Scope) -> Value:
        """The value of a call."""
        call = Call(node, scope, self._machine)
        if isinstance(node.func, ast.Name) and node.func.id == "super":
            return self._parent(scope)
        if not isinstance(node.func, ast.Attribute):
            return self.apply(self._machine.evaluate(node.func, scope), call)
        owner, name = self._machine.evaluate(node.func.value, scope), node.func.attr
        if isinstance(owner, Instance):
            result = self._of_instance(owner, name, call)
            if result is not None:
                return result
        if owner.answers_methods:
            result = owner.method(name, call, self._machine)
            return result if result is not None else self._opaque(call, owner)
        function = owner.attribute(name, self._machine)
        if isinstance(owner, Parent) and not isinstance(function, Function):
            call.evaluate_all()  # a base class from outside keeps what it is given
            return own.of_base(owner.me, name, call, self._machine)
        return self.apply(function, call)

    def _of_instance(self, owner: Instance, name: str, call: Call) -> Value | None:
        """A method that an object of the project has from torch; ``None`` if it is its own."""
        if not owner.has(name):
            if owner.cls.is_module():
                result = models.inherited(owner, name, call, self._machine)
                if result is not None:
                    return result
            else:
                part = own.part_of(owner, self._machine)
                if part is not None:
                    return part.method(name, call, self._machine)
        own.moved(owner, name, call, self._machine)
        if not averages.update_of_project(owner, name, call, self._machine):
            return None
        with self._machine.state.entered(average=True):
            return self.apply(owner.attribute(name, self._machine), call)

    def apply(self, function: Value, call: Call) -> Value:
        """Call anything; what nobody can look into makes what it is given uncertain."""
        result = function.called(call, self._machine)
        if result is None and isinstance(function, Instance):
            result = self._of_object(function, call)
        return result if result is not None else self._opaque(call, function)

    def _of_object(self, owner: Instance, call: Call) -> Value | None:
        if owner.cls.is_module():
            return models.forward(owner.parts(), call, self._machine)
        if owner.cls.member("__call__") is None:
            return None
        return self.apply(owner.attribute("__call__", self._machine), call)

    def external(self, function: External, call: Call) -> Value | None:
        """Call a function from outside of the project; ``None`` if nobody knows what it does."""
        made = table.by_arguments(function, call, self._machine)
        if made is not None:
            return made
        answer = table.functions.find(function.name)
        if answer is not None:
            return answer(call, self._machine)
        values = call.all()
        harmless = function.last in _HARMLESS  # it changes nothing of what it is given
        if not harmless and any(has_training_objects(v) for v in values):
            return None
        known = function.name.startswith(_KNOWN)
        if known and function.last[:1].isupper():
            # nn.Linear(settings.width, 1): two models of the same settings share no parameters
            values = [v for v in values if not isinstance(v, Unknown) or v.key == v.root]
        depends = NOBODY.union(*(v.models for v in values))
        if not known and not harmless:
            given = [v for v in values if v.holds_weights(self._machine)]
            others = [v for v in values if len(given) < 2 or v not in given]
            depends |= NOBODY.union(*(v.parts() for v in others)) | models.inside(given)
        no_grad = self._machine.state.frame.no_grad
        result = self._machine.unknown(models=NOBODY if no_grad else depends)
        if function.name.startswith(("torch.nn.", "nn.")) and function.last[:1].isupper():
            self._machine.state.made.add(result.key)
        return result if makes_new(function.last) else result.made_by(function.name, values)

    def _parent(self, scope: Scope) -> Value:
        """``super()``: the class that holds the running method, and the instance."""
        functions = self._machine.state.frame.functions
        node = functions[-1] if functions else None
        me = scope.find(node.args.args[0].arg) if node is not None and node.args.args else None
        if not isinstance(me, Instance):
            return self._machine.unknown("super")
        homes = (cls for cls in me.cls.ancestry() if node in cls.node.body)
        return Parent(next(homes, me.cls), me)

    def make(self, cls: Class, call: Call) -> Value:
        """An object of a class of the project."""
        instance = Instance(cls)
        own.made(instance, call, self._machine)
        if cls.member("__init__") is not None:
            function = instance.attribute("__init__", self._machine)
            if isinstance(function, Function):
                self.run(function, call.given(), call.named(), call.node)
        elif own.part_of(instance, self._machine) is None:  # a dataclass
            fields = (n.target for n in cls.node.body if isinstance(n, ast.AnnAssign))
            names = [name for target in fields if (name := last_name(target))]
            instance.attributes.update(zip(names, call.given(), strict=False))
            instance.attributes.update(call.named())
        return instance

    def _opaque(self, call: Call, owner: Value) -> Value:
        """A call that nobody can look into; what it was given is not certain any more."""
        values = [owner, *call.all()]
        if any(isinstance(v, Grad) for v in values):
            return self._machine.unknown()
        inside = [part for value in values for part in value.training_objects()]
        scalers = [p.id for p in inside if isinstance(p, Scaler)]
        scalers += [p.scaler for p in inside if isinstance(p, Scaled)]
        optimizers = tuple(p.id for p in inside if isinstance(p, Optimizer))
        if scalers or optimizers:
            scaler = scalers[0] if scalers else None
            self._machine.emit(e.OPAQUE, call.node, scaler=scaler, optimizers=optimizers)
        return self._machine.unknown(models=NOBODY.union(*(v.models for v in values)))

    # The project's own functions

    def run(
        self,
        function: Function,
        given: list[Value],
        named: dict[str, Value],
        at: ast.AST | None = None,
    ) -> Value:
        """Run a function of the project, called `at` some place, and return what it returns."""
        functions = self._machine.state.frame.functions
        if function.node in functions or len(functions) >= MAX_DEPTH:
            return self._machine.unknown("recursion")
        if is_manager(function.node):
            return Manager(function, given, named)
        body = self.run_body
        return self._repeats.call(function, given, named, lambda: body(function, given, named, at))

    def run_body(
        self,
        function: Function,
        given: list[Value],
        named: dict[str, Value],
        at: ast.AST | None = None,
    ) -> Value:
        """Run its body, whatever it is and was called with before."""
        node, state = function.node, self._machine.state
        scope = Scope(function.scope.module, function.scope)
        arguments = [function.me, *given] if function.me is not None else given
        self._bind_arguments(node.args, arguments, named, scope)
        self._machine.covered.add(id(node))
        with state.entered(
            module=function.scope.module,
            functions=(*state.frame.functions, node),
            sites=(*state.frame.sites, (state.frame.module, at)),
            uncertain_at_call=state.frame.uncertain,
        ):
            return self._body(node, scope)

    def _body(self, node: FunctionNode, scope: Scope) -> Value:
        if isinstance(node, ast.Lambda):
            return self._machine.evaluate(node.body, scope)
        if is_abstract(node):
            return self._machine.unknown(node.name)  # what a subclass in some other file does
        contexts = [self._machine.evaluate(d, scope) for d in node.decorator_list]

        def inside() -> None:
            self._machine.run(node.body, scope)

        for context in reversed(contexts):
            if isinstance(context, Context):
                inside = self._within(context, node, inside)
        try:
            inside()
        except Returned as returned:
            return returned.value
        return Const(None)

    def _within(
        self, context: Context, node: ast.AST, run: Callable[[], None]
    ) -> Callable[[], None]:
        def around() -> None:
            with context.around(node, self._machine):
                run()

        return around

    def _bind_arguments(
        self, spec: ast.arguments, given: list[Value], named: dict[str, Value], scope: Scope
    ) -> None:
        listed = [*spec.posonlyargs, *spec.args]
        defaults = dict(zip(reversed(listed), reversed(spec.defaults), strict=False))
        only = dict(zip(spec.kwonlyargs, spec.kw_defaults, strict=True))
        for parameter, value in zip(listed, given, strict=False):
            if type(value) is Unknown and not value.name:
                value = value.under(parameter.arg)
            scope.names[parameter.arg] = value
        for parameter in [*listed[len(given) :], *spec.kwonlyargs]:
            default = defaults.get(parameter) or only.get(parameter)
            scope.names[parameter.arg] = self._argument(parameter.arg, named, default, scope)
        if spec.vararg:
            scope.names[spec.vararg.arg] = Sequence(given[len(listed) :])
        if spec.kwarg:
            scope.names[spec.kwarg.arg] = self._machine.unknown(spec.kwarg.arg)

    def _argument(
        self, name: str, named: dict[str, Value], default: ast.expr | None, scope: Scope
    ) -> Value:
        if name in named:
            return named[name]
        if default is not None and scope.parent is not None:
            return self._machine.evaluate(default, scope.parent)
        return self._machine.unknown(name)
