"""Autograd functions that autocast knows nothing of."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from halfstep.rules.evidence import has_low
from halfstep.rules.rule import Hit, SourceRule
from halfstep.rules.source import Source
from halfstep.rules.syntax import calls_in, dotted, inside, last

_PRODUCTS_WORDS = """
    matmul mm bmm addmm baddbmm einsum linear bilinear addbmm chain_matmul conv1d conv2d
    conv3d conv_transpose1d conv_transpose2d conv_transpose3d
"""
_PRODUCTS = frozenset(_PRODUCTS_WORDS.split())
_EXTENSION = re.compile(r"(^|\.)(_C|_ext|[a-z0-9_]+_(ext|cuda|cuda_kernel))(\.|$)")
_HANDLED = ("autocast", ".float(", ".half(", ".to(", ".type(", "dtype", "custom_fwd", "type_as")

_FUNCTION = """\
import torch
from torch import nn


class Product(torch.autograd.Function):
    @staticmethod{rule}
    def forward(ctx, x, w):{mark}
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod{back}
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad @ w.T, x.T @ grad


w = nn.Parameter(torch.randn(4, 1))
optimizer = torch.optim.SGD([w], lr=0.01)
scaler = torch.amp.GradScaler("cpu")
with torch.autocast("cpu", dtype=torch.float16):
    loss = Product.apply(torch.randn(8, 4), w).float().square().mean()
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
optimizer.zero_grad()
"""


class CustomFunctionWithoutRule(SourceRule):
    """Autograd functions that autocast knows nothing of.

    What: a `torch.autograd.Function` with a product, a convolution or an extension's kernel in its
    forward, applied under autocast, without `custom_fwd`. Why: its forward runs under autocast but
    its backward does not, so that the saved FP32 tensors meet FP16 gradients: an error, or a
    kernel that reads the wrong format. Source: torch, "Automatic Mixed Precision examples",
    section on custom autograd functions.
    """

    severity = "warning"
    words = (("autocast", "GradScaler", ".scale("), ("autograd",))
    message = "{name} multiplies under autocast, and its backward runs without: the formats differ."
    remedy = (
        "decorate forward with torch.amp.custom_fwd(device_type=...) and backward with"
        " torch.amp.custom_bwd(device_type=...)."
    )
    bad = _FUNCTION.format(rule="", back="", mark="  # <- HS209")
    good = _FUNCTION.format(
        rule='\n    @torch.amp.custom_fwd(device_type="cpu")',
        back='\n    @torch.amp.custom_bwd(device_type="cpu")',
        mark="",
    )

    def check(self, source: Source) -> Iterator[Hit]:
        if not has_low(source):
            return
        applied = _applied(source)
        for node in source.nodes(ast.ClassDef):
            if node.name in applied and _is_bare(source, node):
                forward = _method(node, "forward")
                if forward is not None and _multiplies(source, forward):
                    yield Hit(source.place(forward), name=node.name)


def _applied(source: Source) -> set[str]:
    """Functions that are applied under autocast in this file."""
    found = set()
    for node in source.nodes(ast.Call):
        if last(node) == "apply":
            around = source.autocast_around(node)
            if around is not None and around.may_be_low and not source.is_inference(node):
                found.add(dotted(node.func).removesuffix(".apply"))
    return found


def _is_bare(source: Source, node: ast.ClassDef) -> bool:
    bases = {source.resolve(base) for base in node.bases}
    is_function = bases & {"torch.autograd.Function", "torch.autograd.function.Function"}
    return bool(is_function) and not any(word in ast.unparse(node) for word in _HANDLED)


def _method(node: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    found = (item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == name)
    return next(found, None)


def _multiplies(source: Source, forward: ast.FunctionDef) -> bool:
    if any(
        isinstance(n, ast.BinOp) and isinstance(n.op, ast.MatMult) for n in inside(forward.body)
    ):
        return True
    return any(
        last(call) in _PRODUCTS or _EXTENSION.search(source.resolve(call.func) or "")
        for call in calls_in(forward.body)
    )
