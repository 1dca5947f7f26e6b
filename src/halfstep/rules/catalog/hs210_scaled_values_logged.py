"""Numbers for people that still carry the loss scale."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfstep.rules.examples import SETUP
from halfstep.rules.rule import Hit, SourceRule
from halfstep.rules.source import Source
from halfstep.rules.syntax import body_of, inside, last, receiver, targets

_READS = frozenset(["item", "tolist", "numpy", "cpu"])
_SHOWS = frozenset(["print", "float", "add_scalar", "info", "debug", "log", "write"])


class ScaledValuesLogged(SourceRule):
    """Numbers for people that still carry the loss scale.

    What: the result of `scaler.scale(loss)` printed, logged or added up. Why: it is S times the
    loss, and S changes: the curve jumps by powers of two and a falling loss seems to rise. Source:
    torch, "Automatic Mixed Precision package", `GradScaler.scale`.
    """

    severity = "warning"
    words = (("caler",), (".scale(",))
    message = "this value is the loss times the scale, and the scale changes: the curve is wrong."
    remedy = "log the loss itself, before scaler.scale() is applied."
    bad = (
        SETUP
        + """\
for x, y in batches:
    loss = scaler.scale(loss_of(x, y))
    loss.backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    print(loss.item())  # <- HS210
"""
    )
    good = (
        SETUP
        + """\
for x, y in batches:
    loss = loss_of(x, y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    print(loss.item())
"""
    )

    def check(self, source: Source) -> Iterator[Hit]:
        for function in source.functions():
            nodes = list(inside(body_of(function)))
            scaled = _scaled_names(source, nodes)
            for node in nodes:
                if isinstance(node, ast.Call) and (made := _shown(source, node, scaled)):
                    yield Hit(source.place(node), (source.place(made), "scaled here"))


def _is_scaled(source: Source, node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or last(node) != "scale" or not node.args:
        return False
    owner = receiver(node)
    return owner is not None and source.is_scaler(owner)


def _scaled_names(source: Source, nodes: list[ast.AST]) -> dict[str, ast.Call]:
    """Variables that hold nothing but scaled losses after the first of them."""
    found: dict[str, ast.Call] = {}
    for node in nodes:
        value = getattr(node, "value", None)
        for target in targets(node):
            if not isinstance(target, ast.Name):
                continue
            if isinstance(value, ast.Call) and _is_scaled(source, value):
                found.setdefault(target.id, value)
    for name, made in list(found.items()):
        later = [
            node
            for node in nodes
            if getattr(node, "lineno", 0) > made.lineno
            and any(isinstance(t, ast.Name) and t.id == name for t in targets(node))
            and not _is_scaled(source, getattr(node, "value", node))
        ]
        if later:
            del found[name]
    return found


def _shown(source: Source, call: ast.Call, scaled: dict[str, ast.Call]) -> ast.Call | None:
    """The scaling of what `call` shows to people, unless it is divided again."""
    if last(call) in _READS:
        given = receiver(call)
    elif last(call) in _SHOWS and call.args:
        given = call.args[-1] if last(call) != "add_scalar" else _second(call)
    else:
        return None
    made = _behind(source, given, scaled) if given is not None else None
    if made is None or call.lineno < made.lineno:
        return None
    return None if _is_undone(source, call) else made


def _is_undone(source: Source, call: ast.Call) -> bool:
    """Whether the statement divides by the scale again."""
    statement = next(p for p in source.parents(call) if isinstance(p, ast.stmt))
    factors = [
        side
        for node in inside(statement)
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.Mult))
        for side in (node.left, node.right)
    ]
    return any("scale" in ast.unparse(side) for side in factors if call not in ast.walk(side))


def _second(call: ast.Call) -> ast.expr | None:
    return call.args[1] if len(call.args) > 1 else None


def _behind(source: Source, node: ast.expr, scaled: dict[str, ast.Call]) -> ast.Call | None:
    if isinstance(node, ast.Call) and last(node) == "detach":
        inner = receiver(node)
        return _behind(source, inner, scaled) if inner is not None else None
    if isinstance(node, ast.Name):
        return scaled.get(node.id)
    return node if isinstance(node, ast.Call) and _is_scaled(source, node) else None
