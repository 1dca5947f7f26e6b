"""FP16 training without a gradient scaler."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfstep.rules.branches import excludes, known_at
from halfstep.rules.evidence import is_benchmark
from halfstep.rules.examples import SETUP
from halfstep.rules.hand_scaling import is_scaled_by_hand
from halfstep.rules.rule import Hit, SourceRule
from halfstep.rules.source import Autocast, Source
from halfstep.rules.syntax import (
    argument,
    body_of,
    calls_in,
    dotted,
    inside,
    last,
    reads,
    receiver,
    targets,
)

# Whoever of these is at work may scale the loss where this file does not show it.
_OTHERS = ("scaler", "scale_loss", "accelerat", "deepspeed", "fabric", "lightning", "apex")


class Fp16WithoutScaler(SourceRule):
    """FP16 training without a gradient scaler.

    What: a loss computed under FP16 autocast whose backward is not scaled, with no scaler in the
    file. Why: gradients below 6e-8 become 0 in FP16, and in most networks many are; those weights
    stop learning while the loss still falls. Live, a backward of FP16 ops without a scale is seen.
    Source: torch, "Automatic Mixed Precision package", section on gradient scaling.
    """

    severity = "warning"
    readers = "LG"
    words = (("autocast",), (".backward(",))
    message = "this loss comes out of FP16 autocast and is not scaled: small gradients become 0."
    remedy = "scale it with torch.amp.GradScaler, or take dtype=torch.bfloat16."
    bad = (
        SETUP.replace('scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)\n', "")
        + """\
for x, y in batches:
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    loss.backward()  # <- HS202
    optimizer.step()
    optimizer.zero_grad()
"""
    )
    good = (
        SETUP
        + """\
for x, y in batches:
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
    )

    def check(self, source: Source) -> Iterator[Hit]:
        low = source.text.lower()
        if any(word in low for word in _OTHERS) or source.has_scaler() or is_benchmark(source):
            return
        for autocast in source.autocasts():
            if autocast.may_be_fp16 and not source.is_inference(autocast.node):
                yield from _backwards(source, autocast)


def _backwards(source: Source, autocast: Autocast) -> Iterator[Hit]:
    """Backward calls on what the autocast computes."""
    function = source.function(autocast.node)
    losses = _made_from(source, autocast)
    returns = any(isinstance(node, ast.Return) and node.value for node in inside(autocast.body))
    maker = function.name if returns and not isinstance(function, ast.Module) else ""
    for call in source.nodes(ast.Call):
        loss = receiver(call)
        if last(call) != "backward" or loss is None or is_scaled_by_hand(source, loss):
            continue
        if _is_off(source, autocast, call):
            continue
        here = source.function(call) is function and call.lineno >= autocast.node.lineno
        if (here and any(reads(loss, name) for name in losses)) or (
            maker and _comes_from(source, loss, maker)
        ):
            yield Hit(source.place(call), (source.place(autocast.node), "FP16 autocast"))


def _is_off(source: Source, autocast: Autocast, call: ast.Call) -> bool:
    """Whether the autocast is only enabled where this backward does not run."""
    node = autocast.node
    flag = argument(node, None, "enabled") if isinstance(node, ast.Call) else None
    if isinstance(flag, ast.Name) and len(values := source.assigned(flag.id, node)) == 1:
        flag = values[0]
    return flag is not None and excludes(known_at(source, call), flag)


def _made_from(source: Source, autocast: Autocast) -> set[str]:
    """Variables that the autocast computes, and what is computed from them afterwards."""
    made: set[str] = set()
    for node in inside(autocast.body):
        value = _value(node)
        if value is not None and any(calls_in(value)):
            made |= {target.id for target in targets(node) if isinstance(target, ast.Name)}
    for node in inside(body_of(source.function(autocast.node))):
        value = _value(node)
        if value is None or value.lineno <= autocast.node.lineno or source.is_inference(node):
            continue
        if any(word in ast.unparse(value) for word in (".detach(", ".item(", ".data")):
            continue
        if any(reads(value, name) for name in made):
            made |= {target.id for target in targets(node) if isinstance(target, ast.Name)}
    return made


def _value(node: ast.AST) -> ast.expr | None:
    return node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None


def _comes_from(source: Source, loss: ast.expr, maker: str) -> bool:
    """Whether `loss` is what the function `maker` of this file returns."""
    values = source.assigned(loss.id, loss) if isinstance(loss, ast.Name) else [loss]
    return bool(values) and all(
        isinstance(value, ast.Call) and dotted(value.func) in (maker, f"self.{maker}")
        for value in values
    )
