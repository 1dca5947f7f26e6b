"""Shapes of code that decide how the interpreter runs it."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from typing import TypeGuard

from halfstep.check.source.inventory import called_names, last_name
from halfstep.check.source.module import INTERESTING, Module
from halfstep.rules.syntax import children

LoopNode = ast.For | ast.AsyncFor | ast.While
_MANAGERS = frozenset(["contextmanager", "asynccontextmanager"])
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


def leaves(body: list[ast.stmt]) -> bool:
    """Whether a branch ends the iteration, the loop, the function or the program."""
    last = body[-1]
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        return getattr(last.value.func, "attr", "") in ("exit", "_exit")
    return isinstance(last, (ast.Continue, ast.Break, ast.Return, ast.Raise))


def is_abstract(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a method is only there to be overridden."""
    last = node.body[-1]
    if len(node.body) > 2 or not isinstance(last, ast.Raise) or last.exc is None:
        return False
    named = last.exc.func if isinstance(last.exc, ast.Call) else last.exc
    return last_name(named) == "NotImplementedError"


def is_manager(node: ast.AST) -> bool:
    """Whether a function is a generator that is used as a context manager."""
    decorators = getattr(node, "decorator_list", ())
    return any(last_name(decorator) in _MANAGERS for decorator in decorators)


def counts(node: LoopNode, module: Module) -> bool:
    """Whether a condition in a loop counts its rounds: ``(i + 1) % accumulate == 0``."""
    if any(has_modulo(statement, module) for statement in node.body):
        return True
    if has_inner_loop(node):
        return False
    names = windows(node, module)
    tests = (n for s in node.body for n in own_nodes(s) if isinstance(n, ast.If)) if names else ()
    if any(_mentions(test.test, names) and module.relevant(test) for test in tests):
        return True
    return bool(windows_of_objects(module))


def windows(node: LoopNode, module: Module) -> frozenset[str]:
    """Variables that a loop fills and empties again, in rounds without loops of their own.

    A number is counted up and set to 0, a list is appended to and emptied.
    """
    return module.once("windows", node, lambda: _windows_of(node))


def _windows_of(node: LoopNode) -> frozenset[str]:
    if has_inner_loop(node):
        return frozenset()
    return _windows([inner for statement in node.body for inner in own_nodes(statement)])


def windows_of_objects(module: Module) -> frozenset[str]:
    """The same among the attributes of objects, whose methods share the work."""
    return module.once("windows of objects", module.tree, lambda: _of_objects(module))


def _of_objects(module: Module) -> frozenset[str]:
    if "self." not in module.text or not re.search(r"self\.\w+ \+= 1\b", module.text):
        return frozenset()
    nodes = module.nodes
    found = [name for name in _windows(nodes) if name.startswith("self.")]
    tests = [ast.unparse(n.test) for n in nodes if isinstance(n, ast.If) and module.relevant(n)]
    return frozenset(name for name in found if any(name in test for test in tests))


def _windows(nodes: list[ast.AST]) -> frozenset[str]:
    filled: set[str] = set()
    emptied: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            if _is_number(node.value, 1):
                filled.add(ast.unparse(node.target))
        elif isinstance(node, ast.Assign):
            names = [ast.unparse(target) for target in node.targets]
            if _is_number(node.value, 0) or ast.unparse(node.value) == "[]":
                emptied.update(names)
            elif ast.unparse(node.value) == f"{names[0]} + 1":
                filled.add(names[0])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = {"append": filled, "clear": emptied}.get(node.func.attr)
            if owner is not None:
                owner.add(ast.unparse(node.func.value))
    return frozenset(filled & emptied)


def has_inner_loop(node: LoopNode) -> bool:
    """Whether a loop stands in another one."""
    return any(isinstance(inner, _LOOPS) for s in node.body for inner in ast.walk(s))


def is_count(test: ast.expr) -> TypeGuard[ast.Compare]:
    """Whether a condition is ``i < n``."""
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], (ast.Lt, ast.LtE)):
        return False
    return len(test.ops) == 1 and called_names(test) <= {"len"}


def asks_for_rest(node: LoopNode, module: Module) -> bool:
    """Whether something outside of a loop asks if it leaves a part of a window over."""
    inside = {inner for statement in node.body for inner in ast.walk(statement)}
    outside = [n for n in module.nodes if n not in inside]
    lengths = {name for n in outside for name in _lengths_in(n)}
    if not isinstance(node, ast.While):
        near = set(ast.walk(_function_around(node, module)))
        numbers = frozenset(n.id for n in ast.walk(node.target) if isinstance(n, ast.Name))
        if any((d := _divided(n)) is not None and _mentions(d, numbers) for n in near - inside):
            return True
    flags = {name for n in inside for name in _flags_in(n)} | windows(node, module)
    for other in outside:
        divided = _divided(other)
        if divided is not None and (_mentions(divided, lengths) or "len" in called_names(divided)):
            return True
        if isinstance(other, (ast.If, ast.IfExp)) and _mentions(other.test, flags):
            return True
    return False


def _function_around(node: LoopNode, module: Module) -> ast.AST:
    """The function that a loop stands in, or the file."""
    found: ast.AST = module.tree
    for definition in module.nodes:
        if isinstance(definition, (ast.FunctionDef, ast.AsyncFunctionDef)):
            end = definition.end_lineno or definition.lineno
            found = definition if definition.lineno <= node.lineno <= end else found
    return found


def _divided(node: ast.AST) -> ast.expr | None:
    """What is divided, where the remainder is wanted."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return node.left
    divides = isinstance(node, ast.Call) and last_name(node.func) == "divmod"
    return node.args[0] if divides and node.args else None  # type: ignore[attr-defined]


def _lengths_in(node: ast.AST) -> list[str]:
    if not isinstance(node, ast.Assign) or "len" not in called_names(node.value):
        return []
    return [ast.unparse(target) for target in node.targets]


def _flags_in(node: ast.AST) -> list[str]:
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Constant):
        return []
    return [ast.unparse(target) for target in node.targets]


def flushes(whole: ast.BoolOp, part: ast.expr) -> bool:
    """Whether `part` is an alternative to a count of batches and no such count itself."""
    if not isinstance(whole.op, ast.Or) or _has_count(part):
        return False
    return any(map(_has_count, whole.values))


def _has_count(node: ast.AST) -> bool:
    return any(isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod) for n in ast.walk(node))


def bound_names(node: LoopNode) -> frozenset[str]:
    """Names that a loop sets anew in each round."""
    names = (n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    return frozenset(name.id for name in names)


def window_begin(node: ast.BinOp) -> ast.expr | None:
    """``i`` of ``i // size * size`` and of ``i - i % size``: where the window of `i` begins."""
    if isinstance(node.op, ast.Mult):
        for whole, size in ((node.left, node.right), (node.right, node.left)):
            if isinstance(whole, ast.BinOp) and isinstance(whole.op, ast.FloorDiv):
                return whole.left if ast.dump(whole.right) == ast.dump(size) else None
    elif isinstance(node.op, ast.Sub) and isinstance(node.right, ast.BinOp):
        same = ast.dump(node.right.left) == ast.dump(node.left)
        return node.left if same and isinstance(node.right.op, ast.Mod) else None
    return None


_PARTS = re.compile(r"accum|micro|per_update|chunks?$|parts?$|window|grad_steps|^count$")


def divides_by_parts(node: ast.BinOp) -> bool:
    """Whether a mean is divided by the number of micro-batches: ``loss / accumulate``."""
    if "sum" in ast.unparse(node.left):
        return False
    by = node.right
    if isinstance(by, ast.Call):
        return called_names(by) == {"len"} and bool(_PARTS.search(ast.unparse(by.args[0]).lower()))
    if isinstance(by, ast.Constant):
        return type(by.value) is int and by.value > 1
    return bool(_PARTS.search((last_name(by) or "").lower()))


def counted_names(node: LoopNode) -> frozenset[str]:
    """Variables that a loop counts up."""
    raised = (n for n in ast.walk(node) if isinstance(n, ast.AugAssign))
    return frozenset(ast.unparse(n.target) for n in raised if isinstance(n.op, ast.Add))


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """`node` and what is in it, definitions left out."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
        return
    yield node
    for child in children(node):
        yield from own_nodes(child)


def _mentions(node: ast.AST, names: Collection[str]) -> bool:
    found = (n for n in ast.walk(node) if isinstance(n, (ast.Name, ast.Attribute)))
    return any(ast.unparse(n) in names for n in found)


def _is_number(node: ast.expr, value: int) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value == value


def has_modulo(node: ast.AST, module: Module) -> bool:
    """Whether a remainder decides if something happens; inner loops are asked for themselves."""
    if isinstance(node, _LOOPS):
        return False
    condition = node.test if isinstance(node, (ast.If, ast.IfExp)) else None
    if condition and any(isinstance(n, ast.Mod) for n in ast.walk(condition)):
        return module.relevant(node) and not _only_saves(node, module)
    return any(has_modulo(child, module) for child in children(node))


def _only_saves(node: ast.AST, module: Module) -> bool:
    """Whether a branch writes a checkpoint and does nothing else to the training."""
    inner = list(ast.walk(node))
    calls = called_names(node) & (INTERESTING | module.acting() | module.imported)
    left = any(isinstance(n, (ast.Continue, ast.Break, ast.Return, ast.Raise)) for n in inner)
    return bool(calls) and calls <= {"save", "state_dict"} and not left
