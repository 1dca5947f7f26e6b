"""What a name of a program stands for: the base of all kinds, each of which answers for itself.

A kind of value says what its attributes, methods and items are, what a loop over it goes through,
and what a call of it gives. A kind that says nothing gives values that nobody knows anything about.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from halfstep.check.values.regions import AT, NAME, SOME, Step, deeper, region, some
from halfstep.check.values.regions import Models as Models

if TYPE_CHECKING:
    from halfstep.check.values.call import Call
    from halfstep.check.values.run import Run
    from halfstep.rules.events import Place

NOBODY: Models = frozenset()
_NUMBERS = itertools.count()
_MAX_DEPTH = 6  # of questions about what was made of what


class Value:
    """Anything. `models` are the modules whose parameters a tensor depends on.

    Attributes:
        answers_methods: Whether a method call goes to `method`; otherwise the method is looked up
            as an attribute and then called.
        is_training: Whether it is part of a training step, as a scaler is: a call that nobody can
            look into and that is given one may do anything to it.
        has_parameters_of_its_own: Whether a module that holds it has its parameters.
        is_function: Whether it is a function, of the project or from outside.
        carries_scale: Whether it is a gradient, or made of one, that carries the loss scale.
        tells_of_skip: Whether it is not finite where a step is skipped, or says that one is.
        stands_for_all: Whether one value stands for all items of a list, as the parameters do.
    """

    __slots__ = ("_number",)
    models: Models = NOBODY
    answers_methods = False
    is_training = False
    has_parameters_of_its_own = False
    tells_of_skip = False
    carries_scale = False
    is_function = False
    stands_for_all = False

    @property
    def number(self) -> int:
        """Of this value alone; its `id` may go to another one when this one is gone."""
        try:
            return self._number
        except AttributeError:
            self._number: int = next(_NUMBERS)
            return self._number

    @property
    def key(self) -> Hashable:
        """Equal for values that are surely the same on one path."""
        return ("value", self.number)

    @property
    def question(self) -> Hashable:
        """Equal for values that answer a condition in the same way on one path."""
        return self.key

    @property
    def truth(self) -> bool | None:
        """As a condition; ``None`` if nobody knows."""
        return True

    def attribute(self, name: str, run: Run) -> Value:
        """``value.name``."""
        return run.unknown(name, self.models).made_by(f".{name}", [self])

    def method(self, name: str, call: Call, run: Run) -> Value | None:
        """``value.name(...)``; ``None`` where nobody knows what it does."""
        return None

    def is_none(self, run: Run) -> bool | None:
        """Whether it is ``None``; ``None`` if nobody knows."""
        return None if self.truth is None else False

    def called(self, call: Call, run: Run) -> Value | None:
        """``value(...)``; ``None`` where nobody knows what it does."""
        return None

    def item(self, index: Value, node: ast.Subscript, run: Run) -> Value:
        """``value[index]``."""
        return run.unknown(models=self.models).made_by("[]", [self, index])

    def unpacked(self, index: int, run: Run) -> Value:
        """What the `index`-th name of a tuple on the left gets."""
        return run.unknown(models=self.models)

    def iterate(self, rounds: int, run: Run) -> Iterator[Value]:
        """What a loop over it goes through; an unknown length counts as `rounds`."""
        if self.stands_for_all:
            yield self
            return
        for _ in range(rounds):
            yield Unknown(("new", run.fresh()), "", self.models)

    def assign(self, name: str, value: Value, target: ast.Attribute, run: Run) -> None:
        """``self.name = value``."""

    def assign_item(self, index: Value, value: Value, target: ast.Subscript, run: Run) -> None:
        """``self[index] = value``."""

    def as_gradient_of(self, models: Models, target: ast.AST, run: Run) -> bool:
        """``p.grad = self``; whether that is a backward of its own."""
        return False

    def augment(self, name: str, node: ast.AugAssign, value: Value, run: Run) -> bool:
        """``self.name op= value``; whether that is all that happens."""
        return False

    def entered_at(self, place: Place) -> None:
        """It stands in a dict that is written out."""

    def holds_weights(self, run: Run) -> bool:
        """Whether it is a model, its parameters or its state, not something it has computed."""
        return False

    def parts(self) -> Models:
        """Modules that may be in it."""
        return self.models

    def parameters(self) -> Models:
        """Regions whose parameters it has: what an optimizer is made with, or a clip is given."""
        return self.parts()

    def training_objects(self) -> Iterator[Value]:
        """What of a training step is in it, at any depth."""
        if self.is_training:
            yield self

    def kept_in(self, place: str, append: ast.Attribute, run: Run) -> Value:
        """What a list keeps of it.

        Args:
            place: Its place in the list, as it is written.
            append: The method that puts it there.
            run: The path.
        """
        return self

    def likeness(self, depth: int) -> Hashable | None:
        """Equal for arguments with which a function does the same; ``None`` if that is not known.

        Args:
            depth: How far to look into containers.
        """
        return None


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

    def is_none(self, run: Run) -> bool | None:
        return self.value is None

    def likeness(self, depth: int) -> Hashable | None:
        return self.key


# Names of settings: what hangs on them is no part of a model.
_SETTINGS = frozenset(["args", "cfg", "config", "opt", "opts", "hparams", "conf", "self", "params"])


class Unknown(Value):
    """Something that was not looked into: an argument, an attribute, the result of a call.

    Attributes:
        name: Last part of how it is written, by which its use elsewhere is found.
        root: The object it belongs to, as ``model`` for ``model.head``.
        path: How it is reached from there.
        depth: How often it was made of something that is not known.
        divided: Where a loss was divided by the number of parts of its window.
    """

    __slots__ = (
        *("_key", "_origin", "_question", "depth", "divided", "models", "name", "path"),
        "root",
    )
    answers_methods = True
    has_parameters_of_its_own = True

    def __init__(
        self,
        key: Hashable,
        name: str = "",
        models: Models = NOBODY,
        root: Hashable = None,
        path: tuple[Step, ...] = (),
    ) -> None:
        self._key = key
        self.name = name
        self.models = models
        self.root = key if root is None else root
        self.path = path
        self.depth = 0
        self.divided: Place | None = None
        self._origin: tuple[str, tuple[Value, ...]] | None = None
        self._question: Hashable = None

    def made_by(self, name: str, values: Iterable[Value]) -> Unknown:
        """It is what `name` makes of `values`: the same again if both are."""
        values = tuple(values)
        depth = max((v.depth for v in values if isinstance(v, Unknown)), default=0) + 1
        if depth <= _MAX_DEPTH:
            self._origin, self.depth = (name, values), depth
        return self

    def is_made_by(self, *names: str) -> bool:
        """Whether a function of one of these names made it."""
        return self._origin is not None and self._origin[0] in names

    def under(self, name: str) -> Unknown:
        """The same value under a name."""
        same = Unknown(self._key, name, self.models, self.root, self.path)
        same._origin, same._question, same.depth = self._origin, self._question, self.depth
        same.divided = self.divided
        return same

    @property
    def question(self) -> Hashable:
        if self._question is None:
            self._question = self._key
            if self._origin is not None:
                name, values = self._origin
                self._question = ("made", name, *(value.question for value in values))
        return self._question

    @property
    def region(self) -> Hashable:
        """Whose parameters it has."""
        return region(self.root, self.path)

    @property
    def key(self) -> Hashable:
        return self._key

    @property
    def truth(self) -> bool | None:
        return None

    def is_new(self) -> bool:
        """Whether it came out of nothing that the path has seen."""
        return isinstance(self.key, tuple) and self.key[0] == "new"

    def is_item(self) -> bool:
        """Whether it is one of a list of unknown length, or hangs on one."""
        key = self.key
        while isinstance(key, tuple) and key[0] in ("at", "of"):
            key = key[1]
        return isinstance(key, tuple) and key[0] == "item"

    def is_made_here(self) -> bool:
        """Whether the path met it without a name: made by a call, or one item of a list."""
        key = self.key
        while isinstance(key, tuple) and key[0] in ("at", "of"):
            key = key[1]
        return isinstance(key, tuple) and key[0] in ("new", "item")

    def attribute(self, name: str, run: Run) -> Value:
        known = run.state.attributes.get((self.key, name)) or run.known_attribute(self, name)
        if known is not None:
            return known
        root, path = self.root, deeper(self.path, NAME, name)
        if self.name in _SETTINGS:
            root, path = None, ()
        found = Unknown(("of", self.key, name), name, self.models, root, path)
        return run.used_as(found.made_by(f".{name}", [self]) if self._origin else found)

    def assign(self, name: str, value: Value, target: ast.Attribute, run: Run) -> None:
        run.state.attributes[self.key, name] = value

    def method(self, name: str, call: Call, run: Run) -> Value | None:
        return run.method_of_unknown(self, name, call)

    def called(self, call: Call, run: Run) -> Value | None:
        return run.method_of_unknown(self, "__call__", call)

    def item(self, index: Value, node: ast.Subscript, run: Run) -> Value:
        at = index.value if isinstance(index, Const) else None
        name = at if isinstance(at, str) else ""
        known = run.state.entries.get((self.key, name)) if name else None
        if known is not None:
            return known
        key = ("at", self.key, repr(at)) if at is not None else ("new", run.fresh())
        path = deeper(self.path, AT if at is not None else SOME, ast.unparse(node.slice))
        found = Unknown(key, name, self.models, self.root, path)
        return run.used_as(found.made_by("[]", [self, index]))

    def assign_item(self, index: Value, value: Value, target: ast.Subscript, run: Run) -> None:
        if isinstance(index, Const) and isinstance(index.value, str):
            run.state.entries[self.key, index.value] = value
            run.state.num_writes += 1

    def unpacked(self, index: int, run: Run) -> Value:
        found = Unknown(("at", self.key, repr(index)), "", self.models)
        return found.made_by("[]", [self, Const(index)]) if self._origin else found

    def iterate(self, rounds: int, run: Run) -> Iterator[Value]:
        if rounds > 1:
            run.state.looped.add(self.question)
        for i in range(rounds):  # the same items again in another loop over it
            yield Unknown(("item", self.question, i), "", self.models)

    def holds_weights(self, run: Run) -> bool:
        return run.is_model(self)

    def parts(self) -> Models:
        return self.models | frozenset([self.region])

    def parameters(self) -> Models:
        return some(self.models, repr(self.key)) | frozenset([self.region])

    def likeness(self, depth: int) -> Hashable | None:
        return ("unknown", self.name)


class External(Value):
    """A name from outside of the project, as ``torch.nn.Linear``."""

    __slots__ = ("name",)
    is_function = True

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

    def attribute(self, name: str, run: Run) -> Value:
        return External(f"{self.name}.{name}")

    def called(self, call: Call, run: Run) -> Value | None:
        return run.call_external(self, call)

    def likeness(self, depth: int) -> Hashable | None:
        return self.key
