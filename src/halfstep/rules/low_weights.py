"""Models whose parameters are cast to FP16 or BF16 and then given to a stock optimizer."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from halfstep.rules.branches import apart
from halfstep.rules.source import LOW, Source
from halfstep.rules.syntax import argument, body_of, dotted, inside, last, reads, receiver, targets

# Optimizers that keep FP32 copies, or adapters that stay in FP32 beside a model that does not.
_KEEPS_COPIES = (
    "lora",
    "peft",
    "deepspeed",
    "apex",
    "fp16_optimizer",
    "fp16optimizer",
    "kahan",
    "fp32_",
)

# FP32 copies by their usual name; MASTER_ADDR is the address of a process.
_MASTER = re.compile(r"master[_ -]?(weight|param|cop|model|grad|dtype)")

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_RETURN_THEMSELVES = frozenset(["to", "cuda", "cpu", "train", "eval", "apply"])


class LowWeights(NamedTuple):
    """A cast of a model and the optimizer that steps the result.

    Attributes:
        cast: The call.
        dtype: ``"float16"`` or ``"bfloat16"``; both, joined by "or", where a setting decides.
        model: The variable.
        optimizer: The call that makes it.
        sure: Whether no condition stands around the cast.
    """

    cast: ast.Call
    dtype: str
    model: str
    optimizer: ast.Call
    sure: bool


def low_weights(source: Source) -> list[LowWeights]:
    """All in a file that trains."""
    low = source.text.lower()
    if any(word in low for word in _KEEPS_COPIES) or _MASTER.search(low):
        return []
    optimizers = list(_optimizers(source))
    found = []
    for cast, dtypes, model, where in _casts(source) if optimizers else ():
        scope = _scope(source, where, model)
        owned = [c for c, name in optimizers if name == model and _scope(source, c, model) is scope]
        owned = [c for c in owned if _trains_after(source, where, c)]
        owned = [c for c in owned if not apart(source, where, c)]
        if owned and not _undone(source, model, scope) and not source.is_inference(cast):
            sure = _is_sure(source, cast) and _is_sure(source, where)
            found.append(LowWeights(cast, " or ".join(sorted(dtypes)), model, owned[0], sure))
    return found


def _scope(source: Source, call: ast.Call, model: str) -> ast.AST:
    """The function of a call; the class, for what an object has from its beginning."""
    function = source.function(call)
    if model.startswith("self.") and getattr(function, "name", "") == "__init__":
        return next(source.parents(function))
    return function


def cast_to(source: Source, call: ast.Call) -> frozenset[str]:
    """Low dtypes that ``x.half()``, ``x.to(dtype)`` and their kin surely cast to; else empty."""
    method = last(call) if isinstance(call.func, ast.Attribute) else ""
    if method in ("half", "bfloat16"):
        return frozenset(["float16" if method == "half" else "bfloat16"])
    if method not in ("to", "type"):
        return frozenset()
    given = argument(call, None, "dtype")
    for node in [given] if given else call.args:
        dtypes = source.dtypes(node)
        if dtypes <= LOW:
            return dtypes
    return frozenset()


def _is_sure(source: Source, node: ast.AST) -> bool:
    """Whether no condition stands around `node`, or only such as are written to hold."""
    inner = node
    for outer in source.parents(node):
        if isinstance(outer, ast.IfExp):
            return False
        if isinstance(outer, ast.If):
            holds = source.constants(outer.test) == {True} and inner in outer.body
            if not holds:
                return False
        inner = outer
    return True


def _casts(source: Source) -> Iterator[tuple[ast.Call, frozenset[str], str, ast.Call]]:
    """Casts, what to, the variable that holds the model, and where it is set to it."""
    for cast, dtypes, model in _casts_of_variables(source):
        yield cast, dtypes, model, cast
        maker = source.function(cast)
        if isinstance(maker, ast.Module) or _undone(source, model, maker):
            continue
        returned = [n.value for n in inside(maker.body) if isinstance(n, ast.Return)]
        if len(returned) == 1 and returned[0] is not None and _gives(returned[0], cast, model):
            for call, name in _made_by(source, maker.name):
                yield cast, dtypes, name, call


def _gives(returned: ast.expr, cast: ast.Call, model: str) -> bool:
    while (
        isinstance(returned, ast.Call)
        and returned is not cast
        and last(returned) in _RETURN_THEMSELVES
    ):
        owner = receiver(returned)
        returned = owner if owner is not None else cast
    return returned is cast or dotted(returned) == model


def _made_by(source: Source, maker: str) -> Iterator[tuple[ast.Call, str]]:
    """Calls of a function of the file whose result, moved perhaps, is kept in a variable."""
    if [getattr(f, "name", "") for f in source.functions()].count(maker) != 1:
        return
    for node in source.nodes(ast.Assign):
        value: ast.expr | None = node.value
        while isinstance(value, ast.Call) and last(value) in _RETURN_THEMSELVES:
            value = receiver(value)
        if isinstance(value, ast.Call) and dotted(value.func) == maker and len(node.targets) == 1:
            yield value, dotted(node.targets[0])


def _casts_of_variables(source: Source) -> Iterator[tuple[ast.Call, frozenset[str], str]]:
    for node in source.nodes(ast.Call):
        if dtypes := cast_to(source, node):
            owner = receiver(node)
            while isinstance(owner, ast.Call) and last(owner) in _RETURN_THEMSELVES:
                owner = receiver(owner)
            name = dotted(owner) if owner is not None else ""
            if name:
                yield node, dtypes, name
            elif isinstance(owner, ast.Call) and "copy" not in ast.unparse(owner):
                statement = next(source.parents(node))
                if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                    yield node, dtypes, dotted(statement.targets[0])


def _optimizers(source: Source) -> Iterator[tuple[ast.Call, str]]:
    """Stock optimizers over all parameters of one model."""
    for node in source.nodes(ast.Call):
        name = source.resolve(node.func) or ""
        if not name.startswith("torch.optim.") or not last(node)[:1].isupper():
            continue
        params = argument(node, 0, "params")
        owner = receiver(params) if isinstance(params, ast.Call) else None
        if owner is not None and last(params or node) == "parameters" and dotted(owner):
            yield node, dotted(owner)


def _trains_after(source: Source, cast: ast.Call, made: ast.Call) -> bool:
    """Whether the optimizer `made` is used behind `cast`, or in a later round of a loop."""
    target = next((t for p in source.parents(made) for t in targets(p)), None)
    name = dotted(target) if target is not None else ""
    function = source.function(made)
    if not name or "." in name or source.function(cast) is not function:
        return True
    if any(reads(body_of(other), name) for other in source.functions() if other is not function):
        return True
    around = {id(parent) for parent in source.parents(made)}
    rounds = [p for p in source.parents(cast) if isinstance(p, _LOOPS) and id(p) not in around]
    if any(reads(loop, name) for loop in rounds):
        return True
    return any(
        isinstance(node, ast.Name) and node.id == name and node.lineno > cast.lineno
        for node in inside(body_of(function))
    )


def _undone(source: Source, model: str, scope: ast.AST) -> bool:
    """Whether the model is put back to FP32, or is not trained."""
    nodes = ast.walk(scope) if isinstance(scope, ast.ClassDef) else inside(body_of(scope))
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if dotted(node.func.value) != model:
                continue
            if node.func.attr in ("float", "double", "requires_grad_"):
                return True
            if node.func.attr == "to" and any(source.dtypes(a) == {"float32"} for a in node.args):
                return True
    return False
