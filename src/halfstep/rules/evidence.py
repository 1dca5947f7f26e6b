"""Whether a file is one of low precision at all."""

from __future__ import annotations

import ast
import re

from halfstep.rules.source import LOW, Autocast, Source
from halfstep.rules.syntax import calls_in, dotted

_BENCHMARK = re.compile(r"(^|_)(bench|benchmark|profile|profiler|speed|timing)(_|s?\.|s_)")


def has_fp16(source: Source) -> bool:
    """Whether FP16 may run in the file: autocast that may cast to it, or an enabled scaler."""
    return source.has_scaler() or any(a.may_be_fp16 for a in source.autocasts())


def has_low(source: Source) -> bool:
    """The same, BF16 included."""
    return source.has_scaler() or any(
        a.enabled is not False and a.dtypes & LOW for a in source.autocasts()
    )


def callers_autocast(source: Source, node: ast.AST) -> Autocast | None:
    """The autocast of this file under which the function around `node` is called by its name."""
    name = getattr(source.function(node), "name", "")
    for autocast in source.autocasts():
        for call in calls_in(autocast.body):
            if name and dotted(call.func) in (name, f"self.{name}"):
                return autocast
    return None


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
