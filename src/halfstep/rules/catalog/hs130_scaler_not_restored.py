"""A scaler whose state is saved and never read back."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfstep.rules.examples import SETUP
from halfstep.rules.rule import Hit, SourceRule
from halfstep.rules.source import Source
from halfstep.rules.syntax import dotted, last, receiver

_HEAD = SETUP.replace("import torch\n", "import os\nimport tempfile\n\nimport torch\n", 1)
_BEGIN = """\
path = os.path.join(tempfile.mkdtemp(), "last.pt")
if os.path.exists(path):
    state = torch.load(path)
    model.load_state_dict(state["model"])
"""
_LOOP = """\
for x, y in batches:
    scaler.scale(loss_of(x, y)).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
parts = {"model": model, "optimizer": optimizer}
state = {name: part.state_dict() for name, part in parts.items()}
torch.save({**state, "scaler": scaler.state_dict()}, path)
"""
# In these a bare name is looked at and not handed on.
_TESTS = (ast.If, ast.IfExp, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.While, ast.Assert)


class ScalerNotRestored(SourceRule):
    """A scaler whose state is saved and never read back.

    What: a checkpoint holds `scaler.state_dict()`, a resume loads the optimizer from it, and
    nothing in the file calls `scaler.load_state_dict`. Why: a resumed run starts again at
    `init_scale`, skips updates that the straight run made, and ends with other weights. Nothing is
    said where the scaler is handed to code outside of the file. Source: torch, "Automatic Mixed
    Precision recipe", saving and resuming.
    """

    severity = "warning"
    words = (("load_state_dict",), ("scaler",))
    message = (
        "the optimizer is restored and {scaler} is not, although its state is saved: a resumed run"
        " starts from another scale."
    )
    remedy = "call {scaler}.load_state_dict(...) here too."
    bad = _HEAD + _BEGIN + '    optimizer.load_state_dict(state["optimizer"])  # <- HS130\n' + _LOOP
    good = (
        _HEAD
        + _BEGIN
        + '    optimizer.load_state_dict(state["optimizer"])\n'
        + '    scaler.load_state_dict(state["scaler"])\n'
        + _LOOP
    )

    def check(self, source: Source) -> Iterator[Hit]:
        calls = [(call, receiver(call)) for call in source.nodes(ast.Call)]
        loads = [(c, of) for c, of in calls if of is not None and last(c) == "load_state_dict"]
        saves = [c for c, of in calls if of is not None and _saves_a_scaler(source, c, of)]
        restored = [call for call, of in loads if _is_optimizer(of)]
        if not saves or not restored or any(_is_scaler(source, of) for _, of in loads):
            return
        scaler = dotted(saves[0].func).removesuffix(".state_dict")
        if not _escapes(source, scaler):
            saved = (source.place(saves[0]), "its state is saved")
            yield Hit(source.place(restored[0]), saved, scaler=scaler)


def _saves_a_scaler(source: Source, call: ast.Call, of: ast.expr) -> bool:
    return (
        last(call) == "state_dict" and not call.args and bool(dotted(of)) and source.is_scaler(of)
    )


def _is_scaler(source: Source, node: ast.expr) -> bool:
    return "scaler" in last(node).lower() or not dotted(node) or source.is_scaler(node)


def _is_optimizer(node: ast.expr) -> bool:
    name = last(node).lower()
    return name.startswith("opt") or name.endswith(("optimizer", "optim"))


def _escapes(source: Source, scaler: str) -> bool:
    """Whether code that may load it gets the scaler itself."""
    known = {getattr(function, "name", ""): function for function in source.functions()}
    name = scaler.rpartition(".")[2]
    nodes: list[ast.Name | ast.Attribute] = [*source.nodes(ast.Name), *source.nodes(ast.Attribute)]
    for node in nodes:
        if last(node) != name or not isinstance(node.ctx, ast.Load):
            continue
        above = next(source.parents(node))
        if isinstance(above, (ast.Attribute, *_TESTS)):
            continue
        call = next(source.parents(above)) if isinstance(above, ast.keyword) else above
        function = known.get(last(call)) if isinstance(call, ast.Call) else None
        if function is None or name not in _parameters(function):
            return True
    return False


def _parameters(function: ast.AST) -> set[str]:
    arguments = getattr(function, "args", None)
    if not isinstance(arguments, ast.arguments):
        return set()
    return {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
