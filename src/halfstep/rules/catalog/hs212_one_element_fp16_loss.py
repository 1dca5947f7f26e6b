"""Losses of one element in FP16, which the scaler makes infinite."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfstep.rules.examples import SETUP
from halfstep.rules.known_half import is_fp16
from halfstep.rules.rule import Hit, SourceRule
from halfstep.rules.source import Source
from halfstep.rules.syntax import last, number, receiver

_START = SETUP.replace(", init_scale=1024.0", "").replace(
    "torch.randn(8, 4), torch.randn(8, 1)", "torch.randn(64, 4), 2 + torch.randn(64, 1)"
)
_LOOP = """\
for x, y in batches:
    loss = nn.functional.mse_loss(model(x), y).half(){shape}
    scaler.scale(loss).backward(){mark}
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""


class OneElementFp16Loss(SourceRule):
    """Losses of one element in FP16, which the scaler makes infinite.

    What: a loss of shape (1,) in FP16 given to `scaler.scale`. Why: a loss without dimensions is
    promoted to FP32 by the multiplication, one of one element stays FP16, where everything above
    65504 is infinite, the usual scale of 65536 itself among it: such steps are skipped, and the
    scale never stays above 32768. Live, the scaled loss is seen to be FP16. Source: torch, "Type
    promotion"; ``torch/amp/grad_scaler.py``, `scale`.
    """

    readers = "LG"
    words = ((".scale(",), (".half(", "float16"))
    message = "this loss is FP16 and has one element: times the scale it overflows."
    remedy = "call .float() on the loss, or leave it without dimensions."
    bad = _START + _LOOP.format(shape=".reshape(1)", mark="  # <- HS212")
    good = _START + _LOOP.format(shape="", mark="")

    def check(self, source: Source) -> Iterator[Hit]:
        for node in source.nodes(ast.Call):
            if last(node) != "scale" or len(node.args) != 1:
                continue
            owner, loss = receiver(node), node.args[0]
            if owner is None or not source.is_scaler(owner):
                continue
            if _has_one_element(source, loss) and is_fp16(source, loss):
                yield Hit(source.place(node))


def _has_one_element(source: Source, node: ast.expr) -> bool:
    """Whether the last thing done to a loss gives it its only dimension."""
    if isinstance(node, ast.Name):
        values = source.assigned(node.id, node)
        return len(values) == 1 and _has_one_element(source, values[0])
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and node.slice.value is None
    if not isinstance(node, ast.Call):
        return False
    if last(node) in ("reshape", "view"):
        return [number(a) for a in node.args] == [1.0]
    if last(node) in ("half", "to", "detach", "clone", "contiguous"):
        owner = receiver(node)
        return owner is not None and _has_one_element(source, owner)
    if last(node) == "unsqueeze":
        owner = receiver(node)
        return isinstance(owner, ast.Call) and last(owner) in ("mean", "sum") and not owner.args
    return False
