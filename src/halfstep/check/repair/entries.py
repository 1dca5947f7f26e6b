"""Whether whoever gets a dict minds an entry that was not in it before."""

from __future__ import annotations

import ast

from halfstep.check.source.facts import Facts
from halfstep.rules.source import FunctionNode
from halfstep.rules.syntax import dotted, last

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_WRITES = ("save", "dump")
_READS = ("torch.load", "pickle.load")
# Methods of a dict that ask for one entry, or put others in.
_SINGLE = frozenset(["get", "pop", "update", "setdefault"])
_DEPTH = 4  # functions that hand a dict on to each other


def is_open_to_entries(facts: Facts, made: ast.AST) -> bool:
    """Whether the dict that `made` builds is written, and what is read is asked for single entries.

    Args:
        facts: The file.
        made: A dict, or a statement that puts an entry into one.
    """
    read = [c for c in facts.nodes(ast.Call) if facts.resolve(c.func) in _READS]
    return _goes_only_to_files(facts, made, _DEPTH) and all(
        _is_taken_apart(facts, call, _DEPTH) for call in read
    )


def _is(call: ast.Call, words: tuple[str, ...]) -> bool:
    return any(word in last(call.func).lower() for word in words)


def _goes_only_to_files(facts: Facts, made: ast.AST, depth: int) -> bool:
    if isinstance(made, ast.Assign):
        target = made.targets[0]
        name = dotted(target.value) if isinstance(target, ast.Subscript) else dotted(target)
        return bool(name) and _is_name_taken_apart(facts, name, made, depth)
    above = next(facts.parents(made))
    if isinstance(above, ast.keyword):
        above = next(facts.parents(above))
    if isinstance(above, ast.Call) and above.func is not made:
        return _parameter_is_open(facts, above, made, depth)
    plain = isinstance(above, ast.Assign) and len(above.targets) == 1
    return plain and isinstance(above, ast.Assign) and _goes_only_to_files(facts, above, depth)


def _is_taken_apart(facts: Facts, value: ast.AST, depth: int) -> bool:
    """Whether a value is only asked for entries, also through the variable that keeps it."""
    above = next(facts.parents(value))
    while isinstance(above, (ast.IfExp, ast.BoolOp, ast.NamedExpr)):
        if isinstance(above, ast.NamedExpr) and not _name_is_open(facts, above.target, depth):
            return False
        value, above = above, next(facts.parents(above))
    if isinstance(above, ast.Assign) and len(above.targets) == 1:
        return _name_is_open(facts, above.targets[0], depth)
    return _is_single_use(facts, value, depth)


def _name_is_open(facts: Facts, target: ast.expr, depth: int) -> bool:
    name = dotted(target)
    return bool(name) and _is_name_taken_apart(facts, name, target, depth)


def _is_name_taken_apart(facts: Facts, name: str, where: ast.AST, depth: int) -> bool:
    """Whether all uses of a variable ask for entries or write it."""
    nodes: list[ast.Name | ast.Attribute] = [*facts.nodes(ast.Name), *facts.nodes(ast.Attribute)]
    scope = facts.function(where)
    uses = [n for n in nodes if dotted(n) == name and isinstance(n.ctx, ast.Load)]
    if "." not in name:
        uses = [n for n in uses if scope in (facts.function(n), *facts.parents(n))]
    return all(_is_single_use(facts, use, depth) for use in uses)


def _is_single_use(facts: Facts, node: ast.AST, depth: int) -> bool:
    above = next(facts.parents(node))
    if isinstance(above, ast.Subscript):
        return above.value is node
    if isinstance(above, ast.Attribute):
        return above.attr in _SINGLE and isinstance(next(facts.parents(above)), ast.Call)
    if isinstance(above, ast.keyword):
        above = next(facts.parents(above))
    if isinstance(above, ast.Call):
        return _parameter_is_open(facts, above, node, depth)
    if isinstance(above, ast.Compare):
        return all(isinstance(op, (ast.In, ast.NotIn, ast.Is, ast.IsNot)) for op in above.ops)
    return isinstance(above, (ast.If, ast.IfExp, ast.BoolOp, ast.UnaryOp, ast.Assert, ast.Expr))


def _parameter_is_open(facts: Facts, call: ast.Call, given: ast.AST, depth: int) -> bool:
    """Whether a function that gets a dict writes it, or asks it for single entries."""
    functions = [f for f in facts.functions() if isinstance(f, _FUNCTIONS)]
    imported = dotted(call.func).partition(".")[0] in imported_names(facts)
    home = [] if imported else [f for f in functions if f.name == last(call.func)]
    if not home:  # of another file, or torch's: the state of one object, alone in its file
        return _is(call, (*_WRITES, "load_state_dict"))
    name = _parameter(home[0], call, given)
    if depth == 0 or len(home) != 1 or not name:
        return False
    return _is_name_taken_apart(facts, name, home[0].body[0], depth - 1)


def imported_names(facts: Facts) -> set[str]:
    """Names that imports bind; what is called by them is of another file."""
    aliases = [a for node in facts.nodes(ast.Import) for a in node.names]
    aliases += [a for node in facts.nodes(ast.ImportFrom) for a in node.names]
    return {(a.asname or a.name).partition(".")[0] for a in aliases}


def _parameter(function: FunctionNode, call: ast.Call, given: ast.AST) -> str:
    """The parameter that gets an argument of a call; empty where that is not plain."""
    for keyword in call.keywords:
        if keyword.value is given:
            return keyword.arg or ""
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    if isinstance(call.func, ast.Attribute) and names[:1] == ["self"]:
        names = names[1:]
    index = next((i for i, a in enumerate(call.args) if a is given), len(names))
    return names[index] if index < len(names) else ""
