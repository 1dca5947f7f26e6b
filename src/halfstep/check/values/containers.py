"""Lists and dicts whose items are known, and their methods."""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from halfstep.check.source.inventory import last_name
from halfstep.check.values.base import NOBODY, Const, Models, Value

if TYPE_CHECKING:
    from halfstep.check.values.call import Call
    from halfstep.check.values.run import Run

MAX_ITEMS = 8  # of a list that a loop goes through
_MAX_KEPT = 16  # of a list that is appended to


class Sequence(Value):
    """A list or tuple whose items are known."""

    __slots__ = ("items",)
    answers_methods = True

    def __init__(self, items: list[Value]) -> None:
        self.items = items

    @property
    def models(self) -> Models:  # type: ignore[override]
        return NOBODY.union(*(item.models for item in self.items))

    @property
    def question(self) -> Hashable:
        if len(self.items) > MAX_ITEMS:
            return self.key
        return ("sequence", *(item.question for item in self.items))

    @property
    def truth(self) -> bool | None:
        return bool(self.items)

    def item(self, index: Value, node: ast.Subscript, run: Run) -> Value:
        at = index.value if isinstance(index, Const) else None
        if isinstance(at, int) and self.items:
            return self.items[at] if -len(self.items) <= at < len(self.items) else self
        return super().item(index, node, run)

    def unpacked(self, index: int, run: Run) -> Value:
        return self.items[index] if index < len(self.items) else super().unpacked(index, run)

    def iterate(self, rounds: int, run: Run) -> Iterator[Value]:
        return iter(self.items[:MAX_ITEMS]) if self.items else super().iterate(rounds, run)

    def parts(self) -> Models:
        return NOBODY.union(*(item.parts() for item in self.items))

    def parameters(self) -> Models:
        return NOBODY.union(*(item.parameters() for item in self.items))

    def training_objects(self) -> Iterator[Value]:
        return _inside(self.items)

    def likeness(self, depth: int) -> Hashable | None:
        return _joined("sequence", self.items, depth)

    def method(self, name: str, call: Call, run: Run) -> Value | None:
        values = call.given()
        if name in ("append", "add") and len(values) == 1:
            self._append(values[0], call, run)
        elif name == "insert" and len(values) == 2:
            self._append(values[1], call, run)
        elif name in ("extend", "update") and len(values) == 1:
            given = values[0]
            for item in given.items if isinstance(given, Sequence) else [given]:
                self._append(item, call, run)
        elif name == "clear":
            self.items.clear()
        elif name == "copy":
            return Sequence(list(self.items))
        elif name in ("pop", "popleft") and self.items:
            return self.items[0 if name == "popleft" else -1]
        return run.unknown(models=self.models)

    def _append(self, value: Value, call: Call, run: Run) -> None:
        if len(self.items) >= _MAX_KEPT:
            return
        assert isinstance(call.node.func, ast.Attribute)
        name = last_name(call.node.func.value) or "list"
        value = value.kept_in(f"{name}[{len(self.items)}]", call.node.func, run)
        self.items.append(value)
        run.state.num_writes += 1


class Mapping(Value):
    """A dict with constant keys, or a namespace."""

    __slots__ = ("items",)
    answers_methods = True

    def __init__(self, items: dict[Any, Value]) -> None:
        self.items = items

    def attribute(self, name: str, run: Run) -> Value:
        return self.items[name] if name in self.items else super().attribute(name, run)

    def item(self, index: Value, node: ast.Subscript, run: Run) -> Value:
        at = index.value if isinstance(index, Const) else None
        if at in self.items:
            return self.items[at]
        items = list(self.items.values())
        if items and at is None and all(item.is_function for item in items):
            return items[0]  # a table of functions: each does its part of the same
        return super().item(index, node, run)

    def iterate(self, rounds: int, run: Run) -> Iterator[Value]:
        return (Const(key) for key in list(self.items)[:MAX_ITEMS])

    def assign(self, name: str, value: Value, target: ast.Attribute, run: Run) -> None:
        self.items[name] = value

    def assign_item(self, index: Value, value: Value, target: ast.Subscript, run: Run) -> None:
        self.items[index.value if isinstance(index, Const) else "**"] = value

    def parts(self) -> Models:
        return NOBODY.union(*(item.parts() for item in self.items.values()))

    def parameters(self) -> Models:
        return NOBODY.union(*(item.parameters() for item in self.items.values()))

    def training_objects(self) -> Iterator[Value]:
        return _inside(self.items.values())

    def likeness(self, depth: int) -> Hashable | None:
        inner = _joined("mapping", list(self.items.values()), depth)
        return inner and (inner, tuple(map(str, self.items)))

    def method(self, name: str, call: Call, run: Run) -> Value | None:
        values = call.given()
        if name in ("get", "pop", "setdefault") and values:
            key = values[0].value if isinstance(values[0], Const) else None
            if key in self.items:
                return self.items[key]
            return values[1] if len(values) > 1 else run.unknown(str(key))
        if name == "update":
            run.state.num_writes += 1
            for value in values:
                self.items.update(entries(value))
            self.items.update(call.named())
        elif name == "items":
            return Sequence([Sequence([Const(k), v]) for k, v in self.items.items()])
        elif name == "values":
            return Sequence(list(self.items.values()))
        elif name == "keys":
            return Sequence([Const(key) for key in self.items])
        elif name == "copy":
            return Mapping(dict(self.items))
        return run.unknown()


def entries(value: Value) -> dict[Any, Value]:
    """What a dict takes over from `value`; ``"**"`` stands for what is not known."""
    return value.items if isinstance(value, Mapping) else {"**": value}


class Repeated(Value):
    """A list of unknown length, each item as `each`."""

    __slots__ = ("each",)

    def __init__(self, each: Value) -> None:
        self.each = each

    @property
    def models(self) -> Models:  # type: ignore[override]
        return self.each.models

    def iterate(self, rounds: int, run: Run) -> Iterator[Value]:
        return iter([self.each] * rounds)

    def likeness(self, depth: int) -> Hashable | None:
        return _joined("repeated", [self.each], depth)


class Zipped(Value):
    """``zip(...)`` of lists of unknown length."""

    __slots__ = ("parts_",)

    def __init__(self, parts: list[Value]) -> None:
        self.parts_ = parts

    @property
    def models(self) -> Models:  # type: ignore[override]
        return NOBODY.union(*(part.models for part in self.parts_))

    def iterate(self, rounds: int, run: Run) -> Iterator[Value]:
        rows = zip(*(part.iterate(rounds, run) for part in self.parts_), strict=False)
        return (Sequence(list(row)) for row in rows)


def flat(values: Iterable[Value]) -> Iterator[Value]:
    """The items of lists in `values`, at any depth, and the other values."""
    for value in values:
        if isinstance(value, Sequence):
            yield from flat(value.items)
        elif isinstance(value, Repeated):
            yield from flat([value.each])
        else:
            yield value


def _inside(items: Iterable[Value]) -> Iterator[Value]:
    return (part for item in items for part in item.training_objects())


def _joined(what: str, items: list[Value], depth: int) -> Hashable | None:
    if not depth or len(items) > MAX_ITEMS:
        return None
    kinds = [item.likeness(depth - 1) for item in items]
    return None if None in kinds else (what, *kinds)
