"""The files of a project, and what an import of one of them stands for. Nothing is executed."""

from __future__ import annotations

import ast
import os

from halfstep.check.module import GATE, Module
from halfstep.check.objects import Class, Function, ProjectModule, Scope
from halfstep.check.values import External, Value


class Project:
    """Finds imported files beside the importing one and above it, and reads each once."""

    def __init__(self) -> None:
        self._files: dict[str, Module | None] = {}
        self._found: dict[tuple[str, str, int], Module | None] = {}

    def add(self, module: Module) -> None:
        """A file that has been read already."""
        self._files[os.path.abspath(module.path)] = module

    def text(self, path: str) -> str:
        """Source of a file that was read."""
        module = self._files.get(os.path.abspath(path))
        return module.text if module else ""

    def saves_scaler(self, module: Module) -> bool:
        """Whether a file, or one that it imports, takes the state of a scaler anywhere."""
        seen: dict[str, Module] = {}
        queue = [module]
        while queue:
            current = queue.pop()
            if current.path not in seen:
                seen[current.path] = current
                imported = ((key[0], found) for key, found in self._found.items() if found)
                queue += [found for importer, found in imported if importer == current.path]
        parts = ("scaler", "amp")
        return any(m.calls_anywhere(part, "state_dict") for m in seen.values() for part in parts)

    def bind_import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        """Bind the names of an import statement."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                whole = alias.name if alias.asname else alias.name.split(".")[0]
                name = alias.asname or whole
                found = self._module(scope.module, alias.name, 0) if alias.asname else None
                found = found or self._module(scope.module, whole, 0)
                scope.set(name, self._bound(found) if found else External(whole))
            return
        for alias in node.names:
            self._bind_from(node, alias, scope)

    def _bind_from(self, node: ast.ImportFrom, alias: ast.alias, scope: Scope) -> None:
        name, home = alias.asname or alias.name, node.module or ""
        module = self._module(scope.module, home, node.level) if home else None
        if module is not None:
            value = definitions(module).names.get(alias.name)
            if value is not None:
                scope.module.imported.add(name)
                scope.set(name, value)
                return
        inner = self._module(scope.module, f"{home}.{alias.name}".strip("."), node.level)
        if inner is not None:
            scope.set(name, self._bound(inner))
        elif alias.name != "*":
            scope.set(name, External(f"{home}.{alias.name}".strip(".")))

    def _bound(self, module: Module) -> ProjectModule:
        return ProjectModule(definitions(module))

    def _module(self, importer: Module, dotted: str, level: int) -> Module | None:
        key = (importer.path, dotted, level)
        if key not in self._found:
            self._found[key] = self._look(importer, dotted, level)
        return self._found[key]

    def _look(self, importer: Module, dotted: str, level: int) -> Module | None:
        folder = os.path.dirname(os.path.abspath(importer.path))
        relative = dotted.replace(".", os.sep)
        for _ in range(max(level - 1, 0)):
            folder = os.path.dirname(folder)
        folders = [folder] if level else [folder, *_parents(folder)]
        for place in folders:
            for ending in (".py", os.sep + "__init__.py"):
                module = self._read(os.path.join(place, relative + ending), importer)
                if module is not None:
                    return module
        return None

    def _read(self, path: str, importer: Module) -> Module | None:
        if path not in self._files:
            self._files[path] = None
            if os.path.isfile(path):
                self._files[path] = _parsed(path, importer)
        return self._files[path]


def _parents(folder: str) -> list[str]:
    """Two folders up: scripts import from the root of their repository."""
    up = os.path.dirname(folder)
    return [up, os.path.dirname(up)]


def _parsed(path: str, importer: Module) -> Module | None:
    shown = os.path.relpath(path) if not os.path.isabs(importer.path) else path
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        return Module(shown, text) if GATE.search(text) else None
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


def definitions(module: Module) -> Scope:
    """Functions and classes of a file that is only imported; its other statements do not run."""
    scope = Scope(module)
    for node in module.tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            scope.names[node.name] = Function(node, scope)
        elif isinstance(node, ast.ClassDef):
            scope.names[node.name] = Class(node, scope, _bases(node, scope))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            _plain_import(node, scope)
    return scope


def _bases(node: ast.ClassDef, scope: Scope) -> list[Value]:
    names = [ast.unparse(base) for base in node.bases]
    found = [scope.names.get(name) for name in names]
    pairs = zip(names, found, strict=True)
    return [value if isinstance(value, Class) else External(name) for name, value in pairs]


def _plain_import(node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            whole = f"{node.module or ''}.{alias.name}".strip(".")
            scope.names[alias.asname or alias.name] = External(whole)
        else:
            whole = alias.name if alias.asname else alias.name.split(".")[0]
            scope.names[alias.asname or whole] = External(whole)
