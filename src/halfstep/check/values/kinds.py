"""Values of the interpreter: what a name stands for, as far as the rules need it."""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from typing import Any

from halfstep.check.values.regions import Models as Models
from halfstep.check.values.regions import Step, region
from halfstep.rules.events import Place

NOBODY: Models = frozenset()


_NUMBERS = itertools.count()


class Value:
    """Anything. `models` are the modules whose parameters a tensor depends on."""

    __slots__ = ("_number",)
    models: Models = NOBODY

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
        path: How it is reached from there.
    """

    __slots__ = ("_key", "models", "name", "path", "root")

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


class Carried(Value):
    """A gradient that is no parameter's and carries a scale: of a representation, kept by hand."""

    __slots__ = ("scaler",)

    def __init__(self, scaler: Scaler) -> None:
        self.scaler = scaler

    @property
    def truth(self) -> bool | None:
        return None


class ScaleRead(Value):
    """A scale as a number; `inverse` after a division by it."""

    __slots__ = ("inverse", "scaler")

    def __init__(self, scaler: Scaler, inverse: bool = False) -> None:
        self.scaler = scaler
        self.inverse = inverse


class SkipTest(Value):
    """A comparison of scales, or the outcome of halfstep's scaler: was the update skipped?

    Attributes:
        num_steps: Steps before it was made: a later step is not what it speaks of.
        scales: Whether both sides are the scale.
        window: Backward passes before it, where it was made ahead of the step that it speaks of:
            of the gradients, which decide whether that step is skipped.
    """

    __slots__ = ("num_steps", "operator", "scaler", "scales", "window")

    def __init__(
        self,
        scaler: Scaler | None,
        operator: str,
        num_steps: int,
        scales: bool = False,
        window: int | None = None,
    ) -> None:
        self.scaler = scaler
        self.operator = operator
        self.num_steps = num_steps
        self.scales = scales
        self.window = window

    def denied(self) -> SkipTest:
        """Its contrary."""
        name = f"not {self.operator}"
        return SkipTest(self.scaler, name, self.num_steps, self.scales, self.window)

    @property
    def truth(self) -> bool | None:
        return None


class Norm(Unknown):
    """A norm of gradients: not finite where the step is skipped.

    `unscaled` says that it was divided by the scale afterwards.
    """

    __slots__ = ("unscaled",)

    def __init__(self, key: Hashable, name: str) -> None:
        super().__init__(key, name)
        self.unscaled = False


class Coefficient(Unknown):
    """A number divided by a norm of gradients."""

    __slots__ = ()


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


class Repeated(Value):
    """A list of unknown length, each item as `item`."""

    __slots__ = ("item",)

    def __init__(self, item: Value) -> None:
        self.item = item

    @property
    def models(self) -> Models:  # type: ignore[override]
        """Of its items."""
        return self.item.models


class Cleaned(Grad):
    """Gradients whose NaN or inf were replaced: an edit, once they are put back."""

    __slots__ = ()


class Clipped(Grad):
    """Gradients as they are after a clip, once they are put back."""

    __slots__ = ("limits",)

    def __init__(self, of: Models, limits: list[Value]) -> None:
        super().__init__(of)
        self.limits = limits


class State(Value):
    """What ``state_dict()`` gives: "model", "optimizer", "scaler" or "schedule", and of whom."""

    __slots__ = ("entry", "kind", "owner")

    def __init__(self, kind: str, owner: str = "") -> None:
        self.kind = kind
        self.owner = owner
        self.entry: Place | None = None  # where it stands in a dict that is written out


class Method(Value):
    """A method of a scaler, an optimizer, a schedule or an average that is handed on uncalled."""

    __slots__ = ("name", "owner")

    def __init__(self, owner: Value, name: str) -> None:
        self.owner = owner
        self.name = name


class Partial(Value):
    """``functools.partial``: a function and the arguments it has already."""

    __slots__ = ("function", "given", "named")

    def __init__(self, function: Value, given: list[Value], named: dict[str, Value]) -> None:
        self.function = function
        self.given = given
        self.named = named
