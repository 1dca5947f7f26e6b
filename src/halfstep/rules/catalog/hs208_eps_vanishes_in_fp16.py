"""Small constants that are 0 in FP16."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfstep.rules.known_half import is_fp16
from halfstep.rules.low_weights import low_weights
from halfstep.rules.rule import Hit, SourceRule
from halfstep.rules.source import Source
from halfstep.rules.syntax import argument, last, number, receiver

_SMALLEST = 2.0**-25  # half of the smallest subnormal; at and below it everything rounds to 0
_ADAMS = frozenset(["Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad"])
_DEFAULT_EPS = {"Adagrad": 1e-10}

_SETUP = """\
import torch
from torch import nn

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, weights = torch.randn(8, 4), torch.zeros(8)
losses = (model(x).flatten() * 0).half()
"""
_REST = """\
loss.float().backward()
optimizer.step()
"""


class EpsVanishesInFp16(SourceRule):
    """Small constants that are 0 in FP16.

    What: adding or clamping to 1e-8 where the tensor is FP16 for certain, or Adam's eps with FP16
    parameters. Why: FP16 has nothing between 0 and 6e-8, so the constant rounds to 0 and protects
    nothing: 0 / 0 is NaN. Live, an FP16 result of an addition is seen to be 0 where its eps was
    not. Source: IEEE 754 binary16; torchtune issue 2254; pytorch issue 74739.
    """

    severity = "warning"
    readers = "LG"
    words = ((".half(", "float16"), (".backward(",), ("e-", "Adam", "0.00000", "RMSprop"))
    message = "{eps} is 0 in FP16, which this tensor is: it protects from no division by 0."
    remedy = "compute this in FP32 (.float()), or take an eps of at least 1e-7."
    bad = _SETUP + "loss = (losses / (losses.abs().sum() + 1e-8)).sum()  # <- HS208\n" + _REST
    good = _SETUP + "loss = (losses.float() / (losses.float().abs().sum() + 1e-8)).sum()\n" + _REST

    def check(self, source: Source) -> Iterator[Hit]:
        if ".backward(" in source.text:
            for node in [*source.nodes(ast.BinOp), *source.nodes(ast.Call)]:
                eps = _eps(source, node)
                if eps is not None and not source.is_inference(node):
                    yield Hit(source.place(node), eps=ast.unparse(eps))
            yield from _optimizers(source)


def _vanishes(node: ast.expr | None) -> bool:
    value = number(node)
    return value is not None and 0 < value <= _SMALLEST


def _eps(source: Source, node: ast.AST) -> ast.expr | None:
    """The constant that vanishes in `node`."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        for eps, tensor in ((node.right, node.left), (node.left, node.right)):
            if _vanishes(eps) and is_fp16(source, tensor):
                return eps
    if isinstance(node, ast.Call) and last(node) in ("clamp", "clamp_", "clamp_min"):
        least, owner = argument(node, 0, "min"), receiver(node)
        if least is not None and owner is not None and _vanishes(least):
            return least if is_fp16(source, owner) else None
    return None


def _optimizers(source: Source) -> Iterator[Hit]:
    if source.has_scaler():
        return
    for found in low_weights(source):
        name = last(found.optimizer)
        eps = argument(found.optimizer, None, "eps")
        value = number(eps) if eps is not None else _DEFAULT_EPS.get(name, 1e-8)
        if found.dtype == "float16" and name in _ADAMS and value and value <= _SMALLEST:
            cast = source.place(found.cast)
            yield Hit(
                source.place(found.optimizer),
                (cast, "the parameters become FP16"),
                message="eps = {eps} of {name} is 0 in FP16, as its parameters are: updates of"
                " weights without a gradient are 0 / 0.",
                eps=f"{value:g}",
                name=name,
            )
