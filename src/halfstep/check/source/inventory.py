"""What stands in a tree: all of its nodes, and what each definition calls. One walk for it all."""

from __future__ import annotations

import ast

from halfstep.rules.syntax import children

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_KINDS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Inventory:
    """Nodes of a tree, in the order of `ast.walk`, and the content of its definitions.

    Attributes:
        calls: All calls.
        imports: All imports.
        calls_of: Definition to its calls, those of definitions inside of it left out.
        called: Definition to the last parts of what it calls, definitions inside of it included.
        scaling: Definitions in which a name has "scaler" in it.
    """

    def __init__(self, tree: ast.AST) -> None:
        self.calls: list[ast.Call] = []
        self.imports: list[ast.Import | ast.ImportFrom] = []
        self.calls_of: dict[Definition, list[ast.Call]] = {}
        self.called: dict[Definition, set[str]] = {}
        self.scaling: set[Definition] = set()
        self._around: dict[Definition, Definition | None] = {}
        self._is_scaler: dict[str, bool] = {}
        self._walk(tree)
        for inner in reversed(self._around):  # the outer ones come first
            outer = self._around[inner]
            if outer is not None:
                self.called[outer] |= self.called[inner]
                if inner in self.scaling:
                    self.scaling.add(outer)

    def _walk(self, tree: ast.AST) -> None:
        nodes: list[tuple[ast.AST, Definition | None]] = [(tree, None)]
        for node, home in nodes:
            kind = node.__class__
            if kind is ast.Name:
                self._note(node.id, home)  # type: ignore[attr-defined]
                continue
            if kind is ast.Constant:
                continue
            if kind is ast.Attribute:
                self._note(node.attr, home)  # type: ignore[attr-defined]
            elif kind is ast.Call:
                self._note_call(node, home)  # type: ignore[arg-type]
            elif isinstance(node, _KINDS):
                self._around[node] = home
                self.called[node], self.calls_of[node] = set(), []
                home = node
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                self.imports.append(node)
            nodes += [(child, home) for child in children(node)]

    def _note_call(self, call: ast.Call, home: Definition | None) -> None:
        self.calls.append(call)
        if home is not None:
            self.calls_of[home].append(call)
            if name := last_name(call.func):
                self.called[home].add(name)

    def _note(self, name: str, home: Definition | None) -> None:
        known = self._is_scaler.get(name)
        if known is None:
            known = self._is_scaler[name] = "scaler" in name.lower()
        if known and home is not None:
            self.scaling.add(home)


def called_names(node: ast.AST) -> set[str]:
    """Last parts of the names that are called in `node`."""
    nodes = [node]
    for inner in nodes:
        nodes += children(inner)
    calls = (inner for inner in nodes if isinstance(inner, ast.Call))
    return {name for call in calls if (name := last_name(call.func))}


def last_name(node: ast.AST) -> str | None:
    """``c`` of ``a.b.c``, ``c`` of ``c``."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None
