"""What a project itself makes: scopes, functions, classes, instances, and what is in them."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING, Any

from halfstep.check.source.inventory import last_name
from halfstep.check.source.module import OPTIMIZERS
from halfstep.check.values.base import Const, External, Models, Unknown, Value
from halfstep.check.values.call import Given
from halfstep.check.values.containers import Mapping
from halfstep.check.values.state import FunctionNode

if TYPE_CHECKING:
    from halfstep.check.source.module import Module
    from halfstep.check.values.call import Call
    from halfstep.check.values.run import Run

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_ENUMS = frozenset(["Enum", "StrEnum", "IntEnum", "Flag"])
_OF_SCALERS = ("scale", "step", "unscale_", "update")
_SCALERS = frozenset(["GradScaler", "ShardedGradScaler"])
_MODULES = frozenset(["Module", "Sequential", "ModuleList"])
# A moving average, by its name alone: there are as many classes for it as projects.
_AVERAGE = re.compile(r"(^|_)ema(_|$)|EMA|Ema(?![a-z])|[Mm]oving_?[Aa]verage")


@functools.cache
def is_average_name(name: str) -> bool:
    """Whether a name says that it is a moving average of a model."""
    return bool(_AVERAGE.search(name))


def is_schedule_name(name: str) -> bool:
    """Whether a dotted name is that of a learning-rate schedule."""
    last = name.rpartition(".")[2]
    return "lr_scheduler" in name or last.endswith(("LR", "Restarts", "LRScheduler"))


class Scope:
    """Names of a function's frame or of a module."""

    __slots__ = ("globals_", "module", "names", "parent")

    def __init__(self, module: Module, parent: Scope | None = None) -> None:
        self.module = module
        self.names: dict[str, Value] = {}
        self.globals_: set[str] = set()
        self.parent = parent

    def find(self, name: str) -> Value | None:
        """The value of `name` here or further out."""
        scope: Scope | None = self
        while scope is not None:
            value = scope.look(name)
            if value is not None:
                return value
            scope = scope.parent
        return None

    def look(self, name: str) -> Value | None:
        """The value of `name` in this frame."""
        value = self.names.get(name)
        if type(value) is Deferred:
            del self.names[name]  # two files may import each other
            value = self.names[name] = value.find()
        return value

    def set(self, name: str, value: Value) -> None:
        """Bind `name`, in the frame it belongs to."""
        scope = self.outermost() if name in self.globals_ else self
        scope.names[name] = value

    def outermost(self) -> Scope:
        """The frame of the file."""
        scope = self
        while scope.parent is not None:
            scope = scope.parent
        return scope


class FileScope(Scope):
    """A file that is only imported: its statements run when a name they bind is asked for.

    Args:
        module: The file.
        run: Executes one of its statements.
    """

    __slots__ = ("_pending", "_run")

    def __init__(self, module: Module, run: Callable[[ast.stmt, Scope], None]) -> None:
        super().__init__(module)
        self._pending = dict(module.index())
        self._run = run

    def look(self, name: str) -> Value | None:
        """The value of `name`, after the statements that bind it."""
        for statement in self._pending.pop(name, ()):
            self._run(statement, self)
        return super().look(name)


class Deferred(Value):
    """What an import binds, looked for when it is first asked for."""

    __slots__ = ("find",)

    def __init__(self, find: Callable[[], Value]) -> None:
        self.find = find


class Function(Value):
    """A function of the project, bound to an instance if it is a method."""

    __slots__ = ("me", "node", "scope")
    is_function = True

    def __init__(self, node: FunctionNode, scope: Scope, me: Value | None = None) -> None:
        self.node = node
        self.scope = scope
        self.me = me

    def called(self, call: Call, run: Run) -> Value | None:
        return run.call(self, call.given(), call.named(), call.node)

    def training_objects(self) -> Iterator[Value]:
        """What a function that is handed on uses, if anything can happen in it."""
        if not self.scope.module.acts(self.node):
            return
        if isinstance(self.me, Instance):
            yield from self.me.training_objects()
        for node in ast.walk(self.node):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                found = self.scope.find(node.id)
                if found is not None and found.is_training:
                    yield found

    def likeness(self, depth: int) -> Hashable | None:
        return self.node


class Class(Value):
    """A class of the project; `bases` are its other classes or names from outside."""

    __slots__ = ("bases", "node", "scope")

    def __init__(self, node: ast.ClassDef, scope: Scope, bases: list[Value]) -> None:
        self.node = node
        self.scope = scope
        self.bases = bases

    def called(self, call: Call, run: Run) -> Value | None:
        return run.make(self, call)

    def likeness(self, depth: int) -> Hashable | None:
        return self.node

    def attribute(self, name: str, run: Run) -> Value:
        found = self.member(name)
        if isinstance(found, _FUNCTIONS):
            bound = {"classmethod", "staticmethod"} & {last_name(d) for d in found.decorator_list}
            return Function(found, self.home(name), self if bound == {"classmethod"} else None)
        if found is None:
            return run.unknown(name).made_by(f".{name}", [self])
        if self._has_base(_ENUMS):
            return EnumMember(self, name, found)
        return run.evaluate(found, self.scope)

    def method_node(self, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """The definition of a method, in this class alone."""
        methods = (item for item in self.node.body if isinstance(item, _FUNCTIONS))
        return next((item for item in methods if item.name == name), None)

    def own_bases(self) -> list[Class]:
        """Its bases that the project defines."""
        return [b for b in self.bases if isinstance(b, Class) and b is not self]

    def ancestry(self) -> Iterator[Class]:
        """This class and its bases of the project."""
        yield self
        for base in self.own_bases():
            yield from base.ancestry()

    def member(self, name: str) -> Any:
        """Definition of a method, or expression of a class attribute; bases included."""
        for item in self.node.body:
            if isinstance(item, _FUNCTIONS) and item.name == name:
                return item
            if isinstance(item, (ast.Assign, ast.AnnAssign)) and item.value is not None:
                targets = item.targets if isinstance(item, ast.Assign) else [item.target]
                if any(isinstance(t, ast.Name) and t.id == name for t in targets):
                    return item.value
        return next((m for base in self.own_bases() if (m := base.member(name))), None)

    def home(self, name: str) -> Scope:
        """The scope of the class that defines a method."""
        if self.method_node(name) is not None:
            return self.scope
        homes = (base.home(name) for base in self.own_bases() if base.member(name))
        return next(homes, self.scope)

    def _has_base(self, names: frozenset[str]) -> bool:
        return any(
            isinstance(base, External) and base.last in names
            for cls in self.ancestry()
            for base in cls.bases
        )

    def is_module(self) -> bool:
        """Whether it is a module of torch: calling it is a forward, whatever its code says."""
        return self._has_base(_MODULES)

    def is_optimizer(self) -> bool:
        """Whether it is an optimizer of torch."""
        return self._has_base(OPTIMIZERS | {"Optimizer"})

    def is_schedule(self) -> bool:
        """Whether it is a learning-rate schedule of torch."""
        return any(
            isinstance(base, External) and is_schedule_name(base.name)
            for cls in self.ancestry()
            for base in cls.bases
        )

    def is_scaler(self) -> bool:
        """Whether it is a gradient scaler of torch, where it has its own methods as well."""
        if not self._has_base(_SCALERS):
            return False
        methods = (cls.method_node(name) for cls in self.ancestry() for name in _OF_SCALERS)
        return all(_calls_same_of_base(method) for method in methods if method is not None)

    def is_average(self) -> bool:
        """Whether its name says that it is a moving average of a model."""
        return is_average_name(self.node.name)


def _calls_same_of_base(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a method hands on to that of its base: ``super().step(...)`` in ``step``."""
    calls = (n.func for n in ast.walk(node) if isinstance(n, ast.Call))
    return any(
        isinstance(function, ast.Attribute)
        and function.attr == node.name
        and isinstance(function.value, ast.Call)
        and last_name(function.value.func) == "super"
        for function in calls
    )


class EnumMember(Const):
    """A member of an enumeration of the project."""

    __slots__ = ("_cls", "_node")

    def __init__(self, cls: Class, name: str, node: ast.expr) -> None:
        super().__init__(f"{cls.node.name}.{name}")
        self._cls = cls
        self._node = node

    @property
    def truth(self) -> bool | None:
        return True

    def attribute(self, name: str, run: Run) -> Value:
        if name == "value":
            return run.evaluate(self._node, self._cls.scope)
        if name == "name":
            return Const(self.value.rpartition(".")[2])
        return super().attribute(name, run)


class Instance(Value):
    """An object of a project's class."""

    __slots__ = ("attributes", "cls")

    def __init__(self, cls: Class) -> None:
        self.cls = cls
        self.attributes: dict[str, Value] = {}
        _ = self.number  # in the order in which they are made

    @property
    def stands_for_all(self) -> bool:  # type: ignore[override]
        return True

    def has(self, method: str) -> bool:
        """Whether it has a method from the project."""
        return method in self.attributes or bool(self.cls.member(method))

    def attribute(self, name: str, run: Run) -> Value:
        if name in self.attributes:
            return self.attributes[name]
        if name == "__dict__":
            return Mapping(self.attributes)
        found = self.cls.member(name)
        if isinstance(found, _FUNCTIONS):
            return self._method(found, name, run)
        if found is None and (inherited := run.inherited_attribute(self, name)) is not None:
            return inherited
        value = (
            run.evaluate(found, self.cls.scope)
            if found is not None
            else run.used_as(Unknown(("of", self.key, name), name))
        )
        self.attributes[name] = value
        return value

    def _method(self, node: ast.FunctionDef | ast.AsyncFunctionDef, name: str, run: Run) -> Value:
        decorators = {last_name(d) for d in node.decorator_list}
        me = None if "staticmethod" in decorators else self
        function = Function(node, self.cls.home(name), me)
        if not decorators & {"property", "cached_property"}:
            return function
        value = run.call(function, [], {})
        if "cached_property" in decorators:
            self.attributes[name] = value
        return value

    def assign(self, name: str, value: Value, target: ast.Attribute, run: Run) -> None:
        self.attributes[name] = value
        if isinstance(value, Unknown) and self.cls.is_average():
            run.state.averages.add(value.root)

    def unpacked(self, index: int, run: Run) -> Value:
        if index < len(self.attributes):  # a named tuple
            return list(self.attributes.values())[index]
        return super().unpacked(index, run)

    def parts(self) -> Models:
        inside = self.attributes.values() if self.cls.is_module() else ()
        own: Models = frozenset([self.key])
        return own.union(*(v.parts() for v in inside if v.has_parameters_of_its_own))

    def holds_weights(self, run: Run) -> bool:
        return self.cls.is_module()

    def training_objects(self) -> Iterator[Value]:
        return (item for item in self.attributes.values() if item.is_training)

    def likeness(self, depth: int) -> Hashable | None:
        return self.key


class Parent(Value):
    """``super()`` in a method of a class."""

    __slots__ = ("cls", "me")

    def __init__(self, cls: Class, me: Instance) -> None:
        self.cls = cls
        self.me = me

    def attribute(self, name: str, run: Run) -> Value:
        for base in self.cls.own_bases():
            found = base.member(name)
            if isinstance(found, _FUNCTIONS):
                return Function(found, base.home(name), self.me)
        return run.unknown(name)


class ProjectModule(Value):
    """Another file of the project, as ``import utils`` binds it."""

    __slots__ = ("scope",)

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    def attribute(self, name: str, run: Run) -> Value:
        return self.scope.look(name) or External(f"?.{name}")


class Method(Value):
    """A method of a part of a training step that is handed on uncalled."""

    __slots__ = ("name", "owner")

    def __init__(self, owner: Value, name: str) -> None:
        self.owner = owner
        self.name = name

    def called(self, call: Call, run: Run) -> Value | None:
        return self.owner.method(self.name, call, run)

    def training_objects(self) -> Iterator[Value]:
        return self.owner.training_objects()


class Partial(Value):
    """``functools.partial``: a function and the arguments it has already."""

    __slots__ = ("function", "given", "named")

    def __init__(self, function: Value, given: list[Value], named: dict[str, Value]) -> None:
        self.function = function
        self.given = given
        self.named = named

    def called(self, call: Call, run: Run) -> Value | None:
        node = ast.copy_location(ast.Call(call.node.func, [], []), call.node)
        given, named = [*self.given, *call.given()], {**self.named, **call.named()}
        return run.apply(self.function, Given(node, given, named))

    def training_objects(self) -> Iterator[Value]:
        for item in (self.function, *self.given, *self.named.values()):
            yield from item.training_objects()
