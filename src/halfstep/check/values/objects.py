"""What a project itself makes: scopes, functions, classes, instances, and what is in them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeGuard

from halfstep.check.source.module import OPTIMIZERS
from halfstep.check.values.kinds import (
    NOBODY,
    External,
    Mapping,
    Models,
    Params,
    Sequence,
    Unknown,
    Value,
)
from halfstep.check.values.regions import some

if TYPE_CHECKING:
    from halfstep.check.source.module import Module


# A moving average, by its name alone: there are as many classes for it as projects.
AVERAGE = re.compile(r"(^|_)ema(_|$)|EMA|Ema(?![a-z])|[Mm]oving_?[Aa]verage")


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
        scope = self
        if name in self.globals_:
            while scope.parent is not None:
                scope = scope.parent
        scope.names[name] = value


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


FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Function(Value):
    """A function of the project, bound to an instance if it is a method."""

    __slots__ = ("me", "node", "scope")

    def __init__(self, node: FunctionNode, scope: Scope, me: Value | None = None) -> None:
        self.node = node
        self.scope = scope
        self.me = me


class Class(Value):
    """A class of the project; `bases` are its other classes or names from outside."""

    __slots__ = ("bases", "node", "scope")

    def __init__(self, node: ast.ClassDef, scope: Scope, bases: list[Value]) -> None:
        self.node = node
        self.scope = scope
        self.bases = bases

    def method(self, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """The definition of a method, in this class alone."""
        for item in self.node.body:
            if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)) and item.name == name:
                return item
        return None

    def ancestry(self) -> Iterator[Class]:
        """This class and its bases of the project."""
        yield self
        for base in self.bases:
            if isinstance(base, Class) and base is not self:
                yield from base.ancestry()

    def is_module(self) -> bool:
        """Whether it is a module of torch: calling it is a forward, whatever its code says."""
        return any(
            base.is_module()
            if isinstance(base, Class)
            else isinstance(base, External) and base.last in ("Module", "Sequential", "ModuleList")
            for base in self.bases
        )

    def is_average(self) -> bool:
        """Whether its name says that it is a moving average of a model."""
        return bool(AVERAGE.search(self.node.name))


def is_optimizer(value: Value) -> TypeGuard[Instance]:
    """Whether it is an object of a class of the project that is an optimizer of torch."""
    return isinstance(value, Instance) and any(
        isinstance(base, External) and (base.last in OPTIMIZERS or base.last == "Optimizer")
        for cls in value.cls.ancestry()
        for base in cls.bases
    )


class Instance(Value):
    """An object of a project's class."""

    __slots__ = ("attributes", "cls")

    def __init__(self, cls: Class) -> None:
        self.cls = cls
        self.attributes: dict[str, Value] = {}
        _ = self.number  # in the order in which they are made


class Parent(Value):
    """``super()`` in a method of a class."""

    __slots__ = ("cls", "me")

    def __init__(self, cls: Class, me: Instance) -> None:
        self.cls = cls
        self.me = me


class ProjectModule(Value):
    """Another file of the project, as ``import utils`` binds it."""

    __slots__ = ("scope",)

    def __init__(self, scope: Scope) -> None:
        self.scope = scope


def parameters_in(value: Value) -> Models:
    """Regions whose parameters `value` has: what an optimizer is made with, or a clip is given."""
    if isinstance(value, Unknown):
        return some(value.models, repr(value.key)) | frozenset([value.region])
    if isinstance(value, (Sequence, Mapping)):
        items = value.items if isinstance(value, Sequence) else value.items.values()
        return NOBODY.union(*map(parameters_in, items))
    return parts_of(value)


def parts_of(value: Value) -> Models:
    """Modules that may be in `value`."""
    if isinstance(value, Params):
        return value.of
    if isinstance(value, Unknown):
        return value.models | frozenset([value.region])
    if isinstance(value, Instance):
        inside = value.attributes.values() if value.cls.is_module() else ()
        own = frozenset([value.key])
        return own.union(*(parts_of(v) for v in inside if isinstance(v, (Params, Unknown))))
    if isinstance(value, Sequence):
        return NOBODY.union(*(parts_of(item) for item in value.items))
    if isinstance(value, Mapping):
        return NOBODY.union(*(parts_of(item) for item in value.items.values()))
    return value.models
