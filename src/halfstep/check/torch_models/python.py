"""Functions of Python itself that make, count or pass on what a training step is made of."""

from __future__ import annotations

import ast
from typing import Any

from halfstep.check.torch_models.gradients import Params
from halfstep.check.torch_models.table import functions
from halfstep.check.values.base import NOBODY, Const, External, Unknown, Value
from halfstep.check.values.call import Call, Given, has_training_objects
from halfstep.check.values.containers import Mapping, Repeated, Sequence, Zipped, entries, flat
from halfstep.check.values.numbers import Counted, Modulo, Sum
from halfstep.check.values.objects import Class, Function, Instance, Method, Partial
from halfstep.check.values.regions import some
from halfstep.check.values.run import Run

_NAMES = (ast.Name, ast.Attribute, ast.Constant)


# Functions and objects


@functions("*.deepcopy")
def _deepcopy(call: Call, run: Run) -> Value:
    value = call.first()
    return run.unknown() if isinstance(value, (Unknown, Instance)) else value


@functions("*.partial")
def _partial(call: Call, run: Run) -> Value:
    values = call.given()
    return Partial(values[0], values[1:], call.named()) if values else run.unknown()


@functions("*.map")
def _map(call: Call, run: Run) -> Value | None:
    """``map(function, items)``, made at once."""
    if call.count() != 2 or len(call.given()) != 2:
        return None
    function, items = call.given()
    if isinstance(items, Sequence) and isinstance(function, (Function, Method, Partial)):
        node = ast.copy_location(ast.Call(call.node.args[0], [], []), call.node)
        return Sequence([run.apply(function, Given(node, [item])) for item in items.items])
    return None


@functions("*.cast")
def _cast(call: Call, run: Run) -> Value:
    values = call.given()
    return values[-1] if values else run.unknown()


@functions("*.field")
def _field(call: Call, run: Run) -> Value:
    """A field of a dataclass, by its default."""
    named = call.named()
    factory = named.get("default_factory")
    if isinstance(factory, (Function, External)):
        return run.apply(factory, Given(call.node, []))
    return named.get("default", run.unknown())


# Dicts and namespaces


@functions("*.dict")
def _dict(call: Call, run: Run) -> Value:
    items: dict[Any, Value] = {}
    for value in call.given():
        items.update(entries(value))
    return Mapping({**items, **call.named()})


@functions("*.asdict", "*.vars")
def _asdict(call: Call, run: Run) -> Value:
    value = call.first()
    return Mapping(value.attributes) if isinstance(value, Instance) else value


@functions("*.SimpleNamespace")
def _namespace(call: Call, run: Run) -> Value:
    return Mapping(dict(call.named()))


# Loops and numbers


@functions("*.zip")
def _zip(call: Call, run: Run) -> Value:
    values = call.given()
    lengths = [len(v.items) for v in values if isinstance(v, Sequence) and v.items]
    if any(v.stands_for_all for v in values):
        lengths = [1]
    if not lengths:
        whole = Zipped(values)
        run.rounds.alias(whole, values)
        return whole
    return Sequence([Sequence([_item(v, i, run) for v in values]) for i in range(min(lengths))])


def _item(value: Value, index: int, run: Run) -> Value:
    if isinstance(value, Sequence) and value.items:
        return value.items[index]
    return list(value.iterate(index + 1, run))[-1]


@functions("*.enumerate")
def _enumerate(call: Call, run: Run) -> Value:
    values = call.given()
    start = values[1] if len(values) > 1 else call.named().get("start")
    first = start.value if isinstance(start, Const) and type(start.value) is int else 0
    return Counted(values[0] if values else None, first)


@functions("*.range")
def _range(call: Call, run: Run) -> Value:
    values = call.given()
    bounds = [v.value if isinstance(v, Const) else None for v in values]
    start = bounds[0] if len(bounds) > 1 else 0
    end = bounds[1] if len(bounds) > 1 else (bounds[0] if bounds else None)
    if type(end) is int and type(start) is int:
        return Counted(None, start, max(end - start, 0))
    if type(start) is int and 0 < len(values) < 3:
        return Counted(None, start, bound=values[-1])
    return Counted(None, start if type(start) is int else 0)


@functions("*.len")
def _len(call: Call, run: Run) -> Value:
    value = call.first()
    if isinstance(value, Sequence) and run.rounds.is_window(call.node):
        return Const(len(value.items))
    return Sum(("new", run.fresh()), "len", ("len", value.key), 0).made_by("len", [value])


@functions("*.min")
def _min(call: Call, run: Run) -> Value | None:
    """``min(accumulate, total - start)``: a whole window is two rounds."""
    left = [run.rounds.number(v) for v in call.given() if isinstance(v, Sum)]
    plain = all(isinstance(n, _NAMES) for n in call.node.args if not isinstance(n, ast.BinOp))
    sizes = sum(isinstance(n, _NAMES) for n in call.node.args)
    if call.count() == 2 and len(left) == 1 and left[0] is not None and plain and sizes:
        return Const(min(2, left[0]))
    if any(map(has_training_objects, call.all())):
        return None
    return run.unknown(models=NOBODY.union(*(v.models for v in call.all())))


@functions("*.filter")
def _filter(call: Call, run: Run) -> Value:
    values = call.given()
    test = call.node.args[0] if call.node.args else None
    if isinstance(test, ast.Lambda) and isinstance(values[-1], Params):
        return Params(some(values[-1].of, ast.unparse(test.body)))
    return values[-1] if values else run.unknown()


@functions("*.divmod")
def _divmod(call: Call, run: Run) -> Value:
    values = call.given()
    if len(values) != 2 or not isinstance(values[0], (Const, Sum)):
        return run.unknown()
    return Sequence([run.unknown(), Modulo(values[0], values[1])])


@functions("*.getattr")
def _getattr(call: Call, run: Run) -> Value | None:
    """``getattr(owner, "name")``; a default counts where nothing has the attribute."""
    values = call.given()
    if len(values) < 2:
        return None
    name = values[1].value if isinstance(values[1], Const) else _begun(call.node.args[1])
    return values[0].attribute(name, run) if isinstance(name, str) else None


def _begun(node: ast.expr) -> str | None:
    """``"clip_grad_norm_"`` for ``f"clip_grad_{kind}_"``: one clip for all of them."""
    first = node.values[0] if isinstance(node, ast.JoinedStr) and node.values else None
    begin = first.value if isinstance(first, ast.Constant) else ""
    return "clip_grad_norm_" if begin == "clip_grad_" else None


@functions("*.bool")
def _bool(call: Call, run: Run) -> Value:
    value = call.first()
    return value if value.truth is None else Const(value.truth)


@functions("*.next")
def _next(call: Call, run: Run) -> Value:
    """One of all that a value stands for, or something new."""
    value = call.first()
    if value.stands_for_all:
        return value
    found = run.unknown(models=value.models)
    anew = bool(call.node.args) and isinstance(call.node.args[0], ast.Call)
    return found.made_by("next", [value]) if anew else found  # of an iterator that goes on


@functions("*.any", "*.all")
def _any(call: Call, run: Run) -> Value | None:
    """Of what is known item by item."""
    value = call.first()
    items = [value.each] if isinstance(value, Repeated) else getattr(value, "items", None)
    if not isinstance(items, list) or any(item.truth is None for item in items):
        return None if has_training_objects(value) else run.unknown(models=value.models)
    last = ast.unparse(call.node.func).rpartition(".")[2]
    return Const((any if last == "any" else all)(item.truth for item in items))


@functions("*.sum")
def _sum(call: Call, run: Run) -> Value | None:
    """``sum(p.grad is not None for p in ...)``: of answers that are known."""
    value = call.first()
    carried = next((part for part in flat([value]) if part.carries_scale), None)
    if carried is not None:
        return carried
    items = [value.each] if isinstance(value, Repeated) else getattr(value, "items", None)
    found = [i.value for i in items or () if isinstance(i, Const) and type(i.value) is bool]
    if items and len(found) == len(items):
        return Const(sum(found))
    if has_training_objects(value):
        return None
    return run.unknown(models=NOBODY.union(*(v.models for v in call.all()))).made_by("sum", [value])


_TYPES: dict[str, type] = {t.__name__: t for t in (int, float, str, bool, list, tuple, dict, set)}
_LISTS = frozenset(["list", "tuple", "Sequence", "Iterable"])


@functions("isinstance")
def _isinstance(call: Call, run: Run) -> Value:
    """Known for what the path has made, and for what it has looped over; else one question."""
    values = call.given()
    unknown = run.unknown().made_by("isinstance", values)
    if len(values) != 2:
        return unknown
    value, wanted = values[0], list(flat([values[1]]))
    names = {w.last for w in wanted if isinstance(w, External)}
    if isinstance(value, Instance) and all(isinstance(w, Class) for w in wanted):
        return Const(any(cls is w for cls in value.cls.ancestry() for w in wanted))
    kind = _type_of(value)
    if kind is not None and len(names) == len(wanted) and names <= {*_TYPES, *_LISTS}:
        is_list = kind in (list, tuple) and bool(names & {"Sequence", "Iterable"})
        return Const(is_list or any(issubclass(kind, _TYPES.get(n, str)) for n in names))
    is_looped = value.question in run.state.looped and bool(names & _LISTS)
    return Const(True) if is_looped else unknown


def _type_of(value: Value) -> type | None:
    if isinstance(value, Const):
        return type(value.value)
    return list if isinstance(value, Sequence) else dict if isinstance(value, Mapping) else None
