"""Where a file uses the deprecated names of `torch.cuda.amp` and `torch.cpu.amp`."""

from __future__ import annotations

import ast
import re
from typing import NamedTuple

from halfstep.rules.source import Source
from halfstep.rules.syntax import dotted

_NAMES = frozenset(["autocast", "GradScaler", "custom_fwd", "custom_bwd"])
_OLD = re.compile(
    r"torch\.(cuda|cpu)\.amp\.(?:(?:autocast_mode|grad_scaler)\.)?"
    r"(autocast|GradScaler|custom_fwd|custom_bwd)$"
)
_NEW = re.compile(r"torch\.(?:amp\.(?:\w+\.)?)?(autocast|GradScaler|custom_fwd|custom_bwd)$")
_HOME = re.compile(r"torch\.(cuda|cpu)\.amp(\.autocast_mode|\.grad_scaler)?$")
_BY_VERSION = re.compile(r"version|hasattr|TORCH_?\d|TORCH_|signature", re.IGNORECASE)


class Use(NamedTuple):
    """One use of a deprecated name.

    Attributes:
        node: The name as it is written, as ``torch.cuda.amp.autocast`` or ``autocast``.
        call: The call of it, if it is called.
        decorates: Whether it stands bare above a function.
        device: ``"cuda"`` or ``"cpu"``.
        last: Last part of its true name.
    """

    node: ast.expr
    call: ast.Call | None
    decorates: bool
    device: str
    last: str


def stands_for(use: Use) -> str:
    """The true name."""
    return f"torch.{use.device}.amp.{use.last}"


class Uses:
    """All uses in a file, and the imports that some of them come from."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._bound: dict[str, list[ast.AST]] = {}
        self._new_imports: set[str] = set()
        kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        for kind in (*kinds, ast.Name, ast.arg):
            for node in source.nodes(kind):
                self._note_binding(node)
        names = [*source.nodes(ast.Attribute), *source.nodes(ast.Name)]
        self._all = [use for node in names if (use := self._use(node))]

    def all(self) -> list[Use]:
        """In the order of the tree."""
        return self._all

    def imports(self) -> list[ast.ImportFrom | ast.Import]:
        """Import statements that bind deprecated names or their module, dotted ones left out."""
        whole = [n for n in self._source.nodes(ast.Import) if any(map(_is_old_alias, n.names))]
        return [*whole, *(n for n in self._source.nodes(ast.ImportFrom) if _imports_old(n))]

    def bindings(self, name: str) -> list[ast.AST]:
        """Statements that give `name` a meaning."""
        return self._bound.get(name, [])

    def has_both(self, use: Use) -> bool:
        """Whether the file chooses between the old and the new name, by version or by trying."""
        if dotted(use.node).split(".")[0] in self._new_imports:
            return True
        around = list(self._source.parents(use.node))
        tests = [p.test for p in around if isinstance(p, (ast.If, ast.IfExp))]
        if any(_BY_VERSION.search(ast.unparse(test)) for test in tests):
            return True
        choices = [p for p in around if isinstance(p, (ast.Try, ast.If, ast.IfExp))]
        function = self._source.function(use.node)
        if not isinstance(function, ast.Module):  # an early return, by version
            tests_of = (n for n in ast.walk(function) if isinstance(n, ast.If))
            choices += [n for n in tests_of if _BY_VERSION.search(ast.unparse(n.test))]
        return any(self._names_new(p, use.last) for p in choices)

    def _names_new(self, node: ast.AST, last: str) -> bool:
        return any(
            isinstance(n, (ast.Attribute, ast.Name))
            and (found := _NEW.match(self._source.resolve(n) or "")) is not None
            and found.group(1) == last
            for n in ast.walk(node)
        )

    def _note_binding(self, node: ast.AST) -> None:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                name = alias.asname or alias.name.split(".")[0]
                self._bound.setdefault(name, []).append(node)
                home = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
                if _NEW.match(home + alias.name):
                    self._new_imports.add(name)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            self._bound.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            self._bound.setdefault(node.id, []).append(node)
        elif isinstance(node, ast.arg):
            self._bound.setdefault(node.arg, []).append(node)

    def _use(self, node: ast.AST) -> Use | None:
        if not isinstance(node, (ast.Attribute, ast.Name)) or not isinstance(node.ctx, ast.Load):
            return None
        found = _OLD.match(self._source.resolve(node) or "")
        if found is None or _is_shadowed(self, node):
            return None
        parent = next(self._source.parents(node))
        call = parent if isinstance(parent, ast.Call) and parent.func is node else None
        decorates = node in getattr(parent, "decorator_list", ())
        return Use(node, call, decorates, found.group(1), found.group(2))


def _is_shadowed(uses: Uses, node: ast.expr) -> bool:
    """Whether a class or function of the file is what the name means as well."""
    first = dotted(node).split(".")[0]
    return any(isinstance(n, (ast.arg, ast.Name)) for n in uses.bindings(first))


def _imports_old(node: ast.ImportFrom) -> bool:
    module = node.module or ""
    if node.level:
        return False
    if _HOME.match(module):
        return any(alias.name in _NAMES for alias in node.names)
    return module in ("torch.cuda", "torch.cpu") and any(a.name == "amp" for a in node.names)


def _is_old_alias(alias: ast.alias) -> bool:
    return alias.asname is not None and _HOME.match(alias.name) is not None


def is_annotation(source: Source, node: ast.AST) -> bool:
    """Whether `node` only names a type: in an annotation, in `isinstance`, in a comparison."""
    inner = node
    for parent in source.parents(node):
        if isinstance(parent, (ast.Compare, ast.List, ast.Set, ast.Dict)):
            return True  # a table of names
        if isinstance(parent, (ast.arg, ast.AnnAssign)) and inner is parent.annotation:
            return True
        if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return inner is parent.returns
        if isinstance(parent, ast.Call) and inner in parent.args:
            return dotted(parent.func) in ("isinstance", "issubclass")
        if isinstance(parent, ast.stmt):
            return False
        inner = parent
    return False
