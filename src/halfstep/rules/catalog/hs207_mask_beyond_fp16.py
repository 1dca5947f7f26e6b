"""Masks whose value FP16 cannot hold."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator

from halfstep.rules.evidence import has_fp16, in_island
from halfstep.rules.rule import Hit, SourceRule
from halfstep.rules.source import Source
from halfstep.rules.syntax import argument, calls_in, inside, last, number, receiver

_LARGEST = 65504.0
_PRODUCTS = frozenset(["matmul", "bmm", "mm", "einsum", "baddbmm", "linear"])
_WIDE = ("float(", "float32", "double(", "autocast", ".to(", ".type(")

_SETUP = """\
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(4, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler(device)
x = torch.randn(2, 3, 4, device=device)
mask = torch.ones(3, 3, device=device).tril() == 0
with torch.autocast(device):
    scores = model(x) @ x.transpose(-2, -1)
"""
_REST = """\
    loss = (scores.softmax(-1) @ x).square().mean()
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
optimizer.zero_grad()
"""


class MaskBeyondFp16(SourceRule):
    """Masks whose value FP16 cannot hold.

    What: `masked_fill` or `where` with a number beyond 65504, as -1e9, into attention scores. Why:
    under FP16 autocast the scores of a product are FP16: torch raises "value cannot be converted
    to type c10::Half without overflow", or the number becomes -inf and a row that is masked
    wholly becomes NaN. Source: torch, "Autocast Op Reference" (products run in FP16).
    """

    severity = "warning"
    words = (("autocast", "GradScaler", ".scale("), ("masked_fill", "where("))
    message = "{value} is beyond the largest FP16 number, 65504, and these scores may be FP16."
    remedy = "write torch.finfo(scores.dtype).min, which fits in every format."
    bad = _SETUP + "    scores = scores.masked_fill(mask, -1e9)  # <- HS207\n" + _REST
    good = _SETUP + "    scores = scores.masked_fill(mask, torch.finfo(scores.dtype).min)\n" + _REST

    def check(self, source: Source) -> Iterator[Hit]:
        if not has_fp16(source):
            return
        for node in source.nodes(ast.Call):
            if pair := _filled(source, node):
                scores, value = pair
                if _is_product(source, scores) and not _is_silent(source, node):
                    yield Hit(source.place(node), value=ast.unparse(value))


def _is_silent(source: Source, node: ast.AST) -> bool:
    return source.is_inference(node) or in_island(source, node)


def _filled(source: Source, call: ast.Call) -> tuple[ast.expr, ast.expr] | None:
    """The scores and the number that goes into them, if that is too large."""
    if last(call) in ("masked_fill", "masked_fill_"):
        scores, value = receiver(call), argument(call, 1, "value")
        pairs = [(scores, value)]
    elif source.resolve(call.func) == "torch.where" and len(call.args) == 3:
        pairs = [(call.args[1], call.args[2]), (call.args[2], call.args[1])]
    else:
        return None
    for scores, value in pairs:
        if scores is not None and value is not None and _is_beyond(source, value):
            return scores, value
    return None


def _is_beyond(source: Source, node: ast.expr) -> bool:
    value = number(node)
    if value is None:
        values = source.assigned(node.id, node) if isinstance(node, ast.Name) else []
        value = number(values[0]) if len(values) == 1 else None
    return value is not None and math.isfinite(value) and abs(value) > _LARGEST


def _is_product(source: Source, node: ast.expr, depth: int = 4) -> bool:
    """Whether it is surely the result of a product that nothing has cast since."""
    text = ast.unparse(node)
    if any(word in text for word in _WIDE) or depth == 0:
        return False
    if isinstance(node, ast.Name):
        values = [v for v in source.assigned(node.id, node) if v.lineno <= node.lineno]
        texts = [ast.unparse(value) for value in values]
        if any(word in t for t in texts for word in _WIDE):
            return False
        return any(_is_product(source, v, depth - 1) for v in values if v is not node)
    if any(isinstance(n, ast.BinOp) and isinstance(n.op, ast.MatMult) for n in inside(node)):
        return True
    return any(last(call) in _PRODUCTS for call in calls_in(node))
