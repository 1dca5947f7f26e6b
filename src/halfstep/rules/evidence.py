"""Whether a file is one of low precision at all."""

from __future__ import annotations

import ast
import re

from halfstep.rules.source import LOW, Autocast, Source
from halfstep.rules.syntax import calls_in, dotted, last, receiver

_BENCHMARK = re.compile(r"(^|_)(bench|benchmark|profile|profiler|speed|timing)(_|s?\.|s_)")


_MOVES = frozenset(["cuda", "to", "train", "cpu"])
_WRAPS = frozenset(["DistributedDataParallel", "DDP", "DataParallel", "compile"])


def has_fp16(source: Source) -> bool:
    """Whether FP16 may run in the file: autocast that may cast to it, or an enabled scaler."""
    return source.has_scaler() or any(a.may_be_fp16 for a in source.autocasts())


def has_low(source: Source) -> bool:
    """The same, BF16 included."""
    return source.has_scaler() or any(
        a.enabled is not False and a.dtypes & LOW for a in source.autocasts()
    )


def callers_autocast(source: Source, node: ast.AST) -> Autocast | None:
    """The autocast of this file under which the function around `node` is called by its name.

    The ``forward`` of a module is called by the name of the variable that holds the module.
    """
    function = source.function(node)
    name = getattr(function, "name", "")
    owner = next(source.parents(function), None) if name == "forward" else None
    for autocast in source.autocasts():
        for call in calls_in(autocast.body):
            if name and dotted(call.func) in (name, f"self.{name}"):
                return autocast
            if isinstance(owner, ast.ClassDef) and _holds(source, call.func, owner.name):
                return autocast
    return None


def _holds(source: Source, called: ast.expr, cls: str) -> bool:
    """Whether a variable is surely set to an object of `cls`, moved or wrapped as it may be."""
    values = source.assigned(dotted(called), called) if dotted(called) else []
    return bool(values) and all(_is_made_of(source, value, cls) for value in values)


def _is_made_of(source: Source, value: ast.expr, cls: str, depth: int = 4) -> bool:
    if not isinstance(value, ast.Call) or not depth:
        return False
    if dotted(value.func) == cls:
        return True
    inner = receiver(value) if last(value) in _MOVES else None
    if last(value) in _WRAPS and value.args:
        inner = value.args[0]
    if inner is None:
        return False
    named = source.assigned(dotted(inner), value) if dotted(inner) else []
    return any(_is_made_of(source, v, cls, depth - 1) for v in (inner, *named) if v is not value)


def is_benchmark(source: Source) -> bool:
    """Whether the file only measures, so that nobody keeps the weights."""
    name = source.path.replace("\\", "/").rsplit("/", 1)[-1]
    return bool(_BENCHMARK.search(name))


def in_island(source: Source, node: ast.AST) -> bool:
    """Whether autocast is surely off around `node`."""
    around = source.autocast_around(node)
    return around is not None and around.enabled is False


def casts_up(nodes: list[ast.stmt]) -> bool:
    """Whether anything in `nodes` is cast, so that its format is somebody's decision."""
    words = (".float(", ".double(", ".to(", ".type(", "float32", "float64", "autocast", "cast(")
    text = "\n".join(ast.unparse(node) for node in nodes)
    return any(word in text for word in words)
