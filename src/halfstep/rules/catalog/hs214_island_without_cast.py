"""FP32 islands that are entered with FP16 tensors."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfstep.rules.evidence import casts_up
from halfstep.rules.examples import SETUP
from halfstep.rules.rule import Hit, SourceRule
from halfstep.rules.source import Autocast, Source
from halfstep.rules.syntax import dotted, inside, last

# Under autocast these give FP32 already, or whatever they were given.
_WIDE_WORDS = """
    softmax log_softmax exp log pow sum prod cumsum norm cross_entropy nll_loss mse_loss
    l1_loss smooth_l1_loss layer_norm group_norm cdist cosine_similarity tensor zeros ones
    arange randn rand item len float int to
"""
_WIDE = frozenset(_WIDE_WORDS.split())
# These are no arithmetic, or they are meant to run outside of autocast.
_HARMLESS_WORDS = """
    backward step update scale unscale_ zero_grad item detach cpu numpy append extend print
    info debug log add_scalar clip_grad_norm_ clip_grad_value_ parameters size len format save
    state_dict
"""
_HARMLESS = frozenset(_HARMLESS_WORDS.split())

# Arithmetic by a method of the tensor.
_METHODS_WORDS = """
    square pow exp log sqrt rsqrt sum mean var std norm softmax log_softmax cumsum prod matmul mm
    bmm mul div add sub sigmoid
"""
_METHODS = frozenset(_METHODS_WORDS.split())

_LOOP = """\
for x, y in batches:
    with torch.autocast("cpu", dtype=torch.float16):
        output = model(x)
        with torch.autocast("cpu", enabled=False):
            loss = (output{cast} - y).square().mean(){mark}
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""


class IslandWithoutCast(SourceRule):
    """FP32 islands that are entered with FP16 tensors.

    What: `autocast(enabled=False)` inside of autocast, around arithmetic on a tensor from outside
    that nothing casts. Why: the context only stops further casts; the tensor is still FP16, and
    now even the ops that autocast would have run in FP32 run in FP16. Source: torch, "Automatic
    Mixed Precision package", `autocast`: inputs of a disabled region must be cast by hand.
    """

    severity = "warning"
    words = (("autocast",), ("enabled=False", "enabled = False", "False)"))
    message = "{name} comes out of autocast in low precision and stays so in here."
    remedy = "write {name}.float() where it enters the region."
    bad = SETUP + _LOOP.format(cast="", mark="  # <- HS214")
    good = SETUP + _LOOP.format(cast=".float()", mark="")

    def check(self, source: Source) -> Iterator[Hit]:
        for island in source.autocasts():
            if island.enabled is not False or casts_up(island.body):
                continue
            statement = _statement(source, island.node)
            outer = source.autocast_around(statement) or _of_callers(source, statement)
            if outer is None or outer.enabled is False or not outer.may_be_low:
                continue
            if source.is_inference(island.node):
                continue
            yield from _first_uses(source, island, outer)


def _of_callers(source: Source, node: ast.AST) -> Autocast | None:
    """The autocast in which this file runs the module whose ``forward`` holds `node`."""
    function = source.function(node)
    cls = next(source.parents(function), None)
    if getattr(function, "name", "") != "forward" or not isinstance(cls, ast.ClassDef):
        return None
    names = _holders(source, cls.name)
    for autocast in source.autocasts():
        low = autocast.enabled is not False and autocast.may_be_low
        if low and cls not in source.parents(autocast.node):
            used = (n.id for n in inside(autocast.body) if isinstance(n, ast.Name))
            if names & set(used) and not source.is_inference(autocast.node):
                return autocast
    return None


def _holders(source: Source, cls: str) -> set[str]:
    """Variables that hold an object of a class, or one that is made of such an object."""
    names, size = {cls}, 0
    while size != len(names):
        size = len(names)
        for node in (*source.nodes(ast.Assign), *source.nodes(ast.ClassDef)):
            made = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            if isinstance(node, ast.ClassDef) and made & names:
                names.add(node.name)
            elif isinstance(node, ast.Assign) and _read_by(node) & names:
                names |= {t.id for t in node.targets if isinstance(t, ast.Name)}
    return names - {cls}


def _read_by(node: ast.Assign) -> set[str]:
    return {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}


def _statement(source: Source, node: ast.AST) -> ast.AST:
    return next(p for p in source.parents(node) if isinstance(p, ast.stmt))


def _first_uses(source: Source, island: Autocast, outer: Autocast) -> Iterator[Hit]:
    for name in sorted(_from_outside(source, island, outer)):
        for node in inside(island.body):
            if _computes_with(source, node, name):
                yield Hit(source.place(node), (source.place(outer.node), "autocast"), name=name)
                break


def _from_outside(source: Source, island: Autocast, outer: Autocast) -> set[str]:
    """Variables of the island that a call under the outer autocast made, and nothing cast."""
    found = set()
    for node in inside(island.body):
        if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
            continue
        values = [v for v in source.assigned(node.id, node) if v.lineno < island.node.lineno]
        if values and all(_is_low(source, value, outer) for value in values):
            found.add(node.id)
    return found


def _is_low(source: Source, value: ast.expr, outer: Autocast) -> bool:
    around = source.autocast_around(value)
    if (around is not None and around.node is not outer.node) or not isinstance(value, ast.Call):
        return False
    if around is None and source.function(value) in source.parents(outer.node):
        return False  # in front of the autocast
    text = ast.unparse(value)
    return last(value) not in _WIDE and not any(w in text for w in (".float(", ".to(", "float32"))


def _computes_with(source: Source, node: ast.AST, name: str) -> bool:
    """Whether `node` is arithmetic of torch on `name`; what others do with it, nobody knows."""
    if isinstance(node, ast.BinOp):
        return dotted(node.left) == name or dotted(node.right) == name
    if not isinstance(node, ast.Call) or last(node) in _HARMLESS:
        return False
    if isinstance(node.func, ast.Attribute) and last(node) in _METHODS:
        return dotted(node.func.value) == name
    if not _is_torch(source, node):
        return False
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    return any(dotted(argument) == name for argument in given)


def _is_torch(source: Source, call: ast.Call) -> bool:
    """Whether a function of torch is called, or a loss of torch that this file makes."""
    if (source.resolve(call.func) or "").startswith("torch."):
        return True
    values = source.assigned(dotted(call.func), call) if dotted(call.func) else []
    names = [source.resolve(v.func) or "" for v in values if isinstance(v, ast.Call)]
    return bool(names) and all(n.startswith("torch.nn.") and n.endswith("Loss") for n in names)
