"""Clipping that raises at the first overflow of a dynamic scale."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfstep.rules.examples import SETUP
from halfstep.rules.rule import Hit, SourceRule
from halfstep.rules.source import Source
from halfstep.rules.syntax import argument, inside, is_constant, last, number, receiver

_LOOP = """\
for x, y in batches:
    scaler.scale(loss_of(x, y)).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_({given}){mark}
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
_NEVER = 100_000  # a growth interval beyond most runs: the scale is as good as fixed


class ErrorIfNonfiniteWithDynamicScale(SourceRule):
    """Clipping that raises at the first overflow of a dynamic scale.

    What: `error_if_nonfinite=True` between `unscale_` and `step`. Why: a dynamic scale finds its
    height by overflowing, usually in the first steps and once every few thousand; the scaler
    would have skipped that step, but the clip kills the run before it can. Live, the flag is seen
    in a clip of unscaled gradients. Source: torch, `clip_grad_norm_`, `GradScaler`.
    """

    readers = "LG"
    words = (("error_if_nonfinite",), ("caler",))
    message = "a dynamic scale overflows now and then; this clip then raises and the run will stop."
    remedy = "leave error_if_nonfinite out: the scaler skips such steps."
    bad = SETUP.replace("=1024.0", "=2.0**40") + _LOOP.format(
        given="model.parameters(), 1.0, error_if_nonfinite=True", mark="  # <- HS215"
    )
    good = SETUP.replace("=1024.0", "=2.0**40") + _LOOP.format(
        given="model.parameters(), 1.0", mark=""
    )

    def check(self, source: Source) -> Iterator[Hit]:
        if any(not _is_dynamic(made.call, made.enabled) for made in source.scalers()):
            return
        for node in source.nodes(ast.Call):
            if last(node) != "clip_grad_norm_":
                continue
            if not is_constant(argument(node, 3, "error_if_nonfinite"), True):
                continue
            unscale = _unscaled_before(source, node)
            if unscale is not None and not _is_caught(source, node):
                yield Hit(source.place(node), (source.place(unscale), "unscaled here"))


def _is_dynamic(call: ast.Call, enabled: bool | None) -> bool:
    interval = number(argument(call, None, "growth_interval"))
    fixed = number(argument(call, None, "growth_factor")) == 1.0
    return enabled is not False and not fixed and not (interval and interval >= _NEVER)


def _unscaled_before(source: Source, call: ast.Call) -> ast.Call | None:
    """The `unscale_` that comes before the clip on every way to it, conditions on it aside."""
    inner: ast.AST = call
    for parent in source.parents(call):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(parent, field, None)
            if isinstance(block, list) and inner in block:
                for statement in reversed(block[: block.index(inner)]):
                    if (found := _unscale_in(source, statement)) is not None:
                        return found
        if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return None
        inner = parent
    return None


def _unscale_in(source: Source, statement: ast.AST) -> ast.Call | None:
    for node in inside(statement):
        if isinstance(node, ast.Call) and last(node) == "unscale_":
            owner = receiver(node)
            if owner is not None and source.is_scaler(owner):
                return node
    return None


def _is_caught(source: Source, call: ast.Call) -> bool:
    return any(isinstance(p, ast.Try) and p.handlers for p in source.parents(call))
