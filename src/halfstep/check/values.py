"""Values of the interpreter: what a name stands for, as far as the rules need it."""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from halfstep.check.module import Module

Models = frozenset[Hashable]
NOBODY: Models = frozenset()


class Value:
    """Anything. `models` are the modules whose parameters a tensor depends on."""

    __slots__ = ()
    models: Models = NOBODY

    @property
    def key(self) -> Hashable:
        """Equal for values that are surely the same on one path."""
        return id(self)

    @property
    def truth(self) -> bool | None:
        """As a condition; ``None`` if nobody knows."""
        return True


class Const(Value):
    """A number, a text, a truth value or ``None``."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    @property
    def key(self) -> Hashable:
        return ("const", repr(self.value))

    @property
    def truth(self) -> bool | None:
        return bool(self.value)


class Unknown(Value):
    """Something that was not looked into: an argument, an attribute, the result of a call.

    Attributes:
        name: Last part of how it is written, by which its use elsewhere is found.
        root: The object it belongs to, as ``model`` for ``model.head``.
    """

    __slots__ = ("_key", "models", "name", "root")

    def __init__(
        self, key: Hashable, name: str = "", models: Models = NOBODY, root: Hashable = None
    ) -> None:
        self._key = key
        self.name = name
        self.models = models
        self.root = key if root is None else root

    @property
    def key(self) -> Hashable:
        return self._key

    @property
    def truth(self) -> bool | None:
        return None


class External(Value):
    """A name from outside of the project, as ``torch.nn.Linear``."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def last(self) -> str:
        """Its last part."""
        return self.name.rsplit(".", 1)[-1]

    @property
    def key(self) -> Hashable:
        return ("external", self.name)

    @property
    def truth(self) -> bool | None:
        return None


class Scaler(Value):
    """A gradient scaler; a disabled one passes everything through."""

    __slots__ = ("enabled", "id")

    def __init__(self, id_: str, enabled: bool = True) -> None:
        self.id = id_
        self.enabled = enabled


class Optimizer(Value):
    """An optimizer and the modules whose parameters it has, ``None`` if nobody knows."""

    __slots__ = ("id", "params")

    def __init__(self, id_: str, params: Models | None) -> None:
        self.id = id_
        self.params = params


class Schedule(Value):
    """A learning-rate schedule of some optimizer, or of one that was not seen."""

    __slots__ = ("id", "optimizer")

    def __init__(self, id_: str, optimizer: Optimizer | None) -> None:
        self.id = id_
        self.optimizer = optimizer


class Average(Value):
    """A moving average of some model's weights."""

    __slots__ = ("id", "of")

    def __init__(self, id_: str, of: Models) -> None:
        self.id = id_
        self.of = of


class Params(Value):
    """Parameters of some modules, one or many."""

    __slots__ = ("of",)

    def __init__(self, of: Models) -> None:
        self.of = of

    @property
    def models(self) -> Models:  # type: ignore[override]
        return self.of


class Grad(Value):
    """Gradients of some modules."""

    __slots__ = ("of",)

    def __init__(self, of: Models) -> None:
        self.of = of

    @property
    def truth(self) -> bool | None:
        return None


class Scaled(Value):
    """A loss multiplied by a scale."""

    __slots__ = ("models", "scaler")

    def __init__(self, scaler: Scaler, models: Models) -> None:
        self.scaler = scaler
        self.models = models


class ScaleRead(Value):
    """A scale as a number; `inverse` after ``1 / scale``."""

    __slots__ = ("scaler",)

    def __init__(self, scaler: Scaler) -> None:
        self.scaler = scaler


class SkipTest(Value):
    """A comparison of scales: was the update skipped?

    Attributes:
        num_steps: Steps before it was made: a later step is not what it speaks of.
    """

    __slots__ = ("num_steps", "operator", "scaler")

    def __init__(self, scaler: Scaler | None, operator: str, num_steps: int) -> None:
        self.scaler = scaler
        self.operator = operator
        self.num_steps = num_steps

    @property
    def truth(self) -> bool | None:
        return None


class Modulo(Value):
    """``left % right`` with a known left side; every period is read as two."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left


class Context(Value):
    """A context manager that matters: ``"autocast"``, ``"no_grad"`` or ``"no_sync"``."""

    __slots__ = ("facts", "kind")

    def __init__(self, kind: str, facts: dict[str, Any] | None = None) -> None:
        self.kind = kind
        self.facts = facts or {}


class Sequence(Value):
    """A list or tuple whose items are known."""

    __slots__ = ("items",)

    def __init__(self, items: list[Value]) -> None:
        self.items = items

    @property
    def models(self) -> Models:  # type: ignore[override]
        return NOBODY.union(*(item.models for item in self.items))

    @property
    def truth(self) -> bool | None:
        return bool(self.items)


class Mapping(Value):
    """A dict with constant keys."""

    __slots__ = ("items",)

    def __init__(self, items: dict[Any, Value]) -> None:
        self.items = items


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
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        return None

    def set(self, name: str, value: Value) -> None:
        """Bind `name`, in the frame it belongs to."""
        scope = self
        if name in self.globals_:
            while scope.parent is not None:
                scope = scope.parent
        scope.names[name] = value


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


class Instance(Value):
    """An object of a project's class."""

    __slots__ = ("attributes", "cls")

    def __init__(self, cls: Class) -> None:
        self.cls = cls
        self.attributes: dict[str, Value] = {}


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


class Repeated(Value):
    """A list of unknown length, each item as `item`."""

    __slots__ = ("item",)

    def __init__(self, item: Value) -> None:
        self.item = item

    @property
    def models(self) -> Models:  # type: ignore[override]
        """Of its items."""
        return self.item.models


class Counted(Value):
    """``range(n)`` or ``enumerate(over)``.

    Attributes:
        over: What is counted; ``None`` for a range.
        start: The first number.
        length: Of the range, if it is known.
    """

    __slots__ = ("length", "over", "start")

    def __init__(self, over: Value | None, start: int = 0, length: int | None = None) -> None:
        self.over = over
        self.start = start
        self.length = length


def parts_of(value: Value) -> Models:
    """Modules that may be in `value`."""
    if isinstance(value, Params):
        return value.of
    if isinstance(value, Unknown):
        return value.models | frozenset([value.root])
    if isinstance(value, Instance):
        return frozenset([value.key])
    if isinstance(value, Sequence):
        return NOBODY.union(*(parts_of(item) for item in value.items))
    if isinstance(value, Mapping):
        return NOBODY.union(*(parts_of(item) for item in value.items.values()))
    return value.models
