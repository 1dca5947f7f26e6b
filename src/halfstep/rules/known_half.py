"""Tensors that are FP16 for certain, because the text next to them says so."""

from __future__ import annotations

import ast

from halfstep.rules.low_weights import cast_to
from halfstep.rules.source import Source
from halfstep.rules.syntax import argument, dotted, last, receiver

_FACTORIES_WORDS = """
    zeros ones empty full rand randn tensor arange linspace zeros_like ones_like
"""
_FACTORIES = frozenset(_FACTORIES_WORDS.split())
_KEEPS_WORDS = """
    norm sum mean abs sqrt square pow clamp clamp_ view reshape detach unsqueeze squeeze std
    var exp contiguous flatten transpose permute expand clone cuda max amax t add mul sub div
"""
_KEEPS = frozenset(_KEEPS_WORDS.split())
_TWO_RESULTS = ("max", "min")


def is_fp16(source: Source, node: ast.expr, depth: int = 8) -> bool:
    """Whether `node` is an FP16 tensor, whatever else the program does."""
    if depth == 0:
        return False
    if isinstance(node, ast.Call):
        return _call(source, node, depth)
    if isinstance(node, ast.BinOp):
        sides = (node.left, node.right)
        known = [is_fp16(source, side, depth - 1) for side in sides]
        return any(known) and all(
            k or isinstance(side, ast.Constant) for k, side in zip(known, sides, strict=True)
        )
    if isinstance(node, ast.UnaryOp):
        return is_fp16(source, node.operand, depth - 1)
    if isinstance(node, ast.Subscript):
        return is_fp16(source, node.value, depth - 1)
    if isinstance(node, ast.Name):
        values = source.assigned(node.id, node)
        # an assignment that reads its own target says nothing new: x = x / 2
        return bool(values) and all(is_fp16(source, value, depth - 1) for value in values)
    return False


def _call(source: Source, node: ast.Call, depth: int) -> bool:
    name = source.resolve(node.func) or ""
    if name.startswith("torch.") and name[6:] in _FACTORIES:
        dtype = argument(node, None, "dtype")
        return dtype is not None and source.dtypes(dtype) == {"float16"}
    if cast_to(source, node) == {"float16"}:
        return True
    owner = receiver(node)
    if owner is None or last(node) not in _KEEPS or dotted(owner) == "torch":
        return False
    if argument(node, None, "dtype") is not None or source.autocast_around(node):
        return False  # autocast has rules of its own for many of these
    if last(node) in _TWO_RESULTS and node.args:
        return False
    return is_fp16(source, owner, depth - 1)
