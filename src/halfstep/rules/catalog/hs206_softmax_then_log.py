"""Logarithms, softmax and variance by formulas that lose their digits."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfstep.rules.evidence import has_low, in_island
from halfstep.rules.examples import SETUP
from halfstep.rules.rule import Hit, SourceRule
from halfstep.rules.source import FunctionNode, Source
from halfstep.rules.syntax import body_of, calls_in, dotted, inside, last, receiver

_REST = """\
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
_LOOP = """\
for x, _ in batches:
    with torch.autocast("cpu", dtype=torch.float16):
        logits = model(x) * torch.arange(3.0)
        loss = {loss}
"""
_SOFTMAX = frozenset(["torch.softmax", "torch.nn.functional.softmax"])
_NO_MAXIMUM = "exp overflows FP16 above 11; a softmax has to subtract the maximum before it."
_WIDE = (".float(", ".double(", "float32", "float64")
_DIFFERENCE = (
    "the mean of squares minus the square of the mean loses all digits where the mean is large."
)


class SoftmaxThenLog(SourceRule):
    """Logarithms, softmax and variance by formulas that lose their digits.

    What: the logarithm of a softmax; exp divided by its sum without the maximum subtracted; a
    variance as a difference of two means. Why: a probability below 6e-8 is 0 in FP16 and its
    logarithm is -inf; exp(12) overflows; the difference cancels. Source: torch, "log_softmax":
    "doing these two operations separately is slower and numerically unstable"; Higham, "Accuracy
    and Stability of Numerical Algorithms", section 1.9.
    """

    severity = "note"
    words = (("autocast", "GradScaler", ".scale("), ("softmax", "exp(", "mean("))
    message = "the softmax may be 0 where its logarithm is taken, and the loss becomes infinite."
    remedy = "use log_softmax, softmax or var, which are written for this."
    bad = (
        SETUP
        + _LOOP.format(loss="-torch.log(torch.softmax(logits, dim=-1))[:, 0].mean()  # <- HS206")
        + _REST
    )
    good = SETUP + _LOOP.format(loss="-torch.log_softmax(logits, dim=-1)[:, 0].mean()") + _REST

    def check(self, source: Source) -> Iterator[Hit]:
        if not has_low(source):
            return
        for function in source.functions():
            nodes = list(inside(body_of(function)))
            for node in nodes:
                message = _mistake(source, function, node)
                if message is not None and not _is_silent(source, node):
                    yield Hit(source.place(node), message=message or self.message)


def _is_silent(source: Source, node: ast.AST) -> bool:
    return source.is_inference(node) or in_island(source, node)


def _mistake(source: Source, function: FunctionNode | ast.Module, node: ast.AST) -> str | None:
    """Which of the three `node` is; an empty text for the first."""
    if isinstance(node, ast.Call) and _is_log_of_softmax(source, node):
        return ""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return _NO_MAXIMUM if _is_bare_softmax(source, function, node) else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        return _DIFFERENCE if _is_variance(source, node) else None
    return None


def _is_log_of_softmax(source: Source, call: ast.Call) -> bool:
    if last(call) != "log":
        return False
    of_torch = source.resolve(call.func) == "torch.log" and call.args
    given = call.args[0] if of_torch else receiver(call)
    if isinstance(given, ast.Name):
        values = source.assigned(given.id, given)
        return len(values) == 1 and _is_softmax(source, values[0])
    return given is not None and _is_softmax(source, given)


def _is_softmax(source: Source, node: ast.expr) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = source.resolve(node.func) or ""
    return name in _SOFTMAX or (last(node) == "softmax" and not name.startswith("torch."))


def _is_bare_softmax(source: Source, function: FunctionNode | ast.Module, node: ast.BinOp) -> bool:
    """``exp(x) / exp(x).sum()`` of a plain `x`, in a function without any maximum."""
    top = _through(source, node.left)
    if not isinstance(top, ast.Call) or last(top) != "exp":
        return False
    given = top.args[0] if top.args else receiver(top)
    sums = [c for c in calls_in([node.right]) if last(c) == "sum"]
    if not sums or not isinstance(given, (ast.Name, ast.Attribute)):
        return False
    summed = sums[0].args[0] if _takes_it_first(source, sums[0]) else receiver(sums[0])
    if summed is None or ast.dump(_through(source, summed)) != ast.dump(top):
        return False
    text = "\n".join(ast.unparse(statement) for statement in body_of(function))
    return not any(word in text for word in ("max", "clamp", "logsumexp", "clip", "normalize"))


def _takes_it_first(source: Source, call: ast.Call) -> bool:
    """Whether the call is ``torch.sum(x)`` rather than ``x.sum()``."""
    return (source.resolve(call.func) or "").startswith("torch.") and bool(call.args)


def _through(source: Source, node: ast.expr) -> ast.expr:
    """What a variable with one value was set to."""
    if isinstance(node, ast.Name) and len(values := source.assigned(node.id, node)) == 1:
        return values[0]
    return node


def _is_variance(source: Source, node: ast.BinOp) -> bool:
    """``(x**2).mean() - x.mean()**2``."""
    left, right = _through(source, node.left), node.right
    squared = _mean_of(source, left)
    base = _square_of(right)
    if squared is None or base is None:
        return False
    mean, inner = _mean_of(source, _through(source, base)), _square_of(squared)
    if mean is None or inner is None or ast.dump(mean) != ast.dump(inner):
        return False
    made = source.assigned(dotted(mean), mean) if dotted(mean) else []
    return not any(word in ast.unparse(n) for n in [mean, *made] for word in _WIDE)


def _mean_of(source: Source, node: ast.expr) -> ast.expr | None:
    if not isinstance(node, ast.Call) or last(node) != "mean":
        return None
    return node.args[0] if _takes_it_first(source, node) else receiver(node)


def _square_of(node: ast.expr) -> ast.expr | None:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        exponent = node.right
        return node.left if isinstance(exponent, ast.Constant) and exponent.value == 2 else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return node.left if ast.dump(node.left) == ast.dump(node.right) else None
    if isinstance(node, ast.Call) and last(node) in ("square", "pow"):
        if last(node) == "pow" and not any(
            isinstance(a, ast.Constant) and a.value == 2 for a in node.args
        ):
            return None
        owner = receiver(node)
        return node.args[0] if isinstance(owner, ast.Name) and owner.id == "torch" else owner
    return None
