"""Imports of the interpreter: other files of the project, each run as far as it is asked for."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from halfstep.check.interpreter.ends import Raised
from halfstep.check.source.module import Module
from halfstep.check.values.base import External, Value
from halfstep.check.values.objects import Deferred, FileScope, ProjectModule, Scope

if TYPE_CHECKING:
    from halfstep.check.interpreter.machine import Machine


class Imports:
    """Binds imports for a `Machine`; every file has one scope per path."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._scopes: dict[str, FileScope] = {}

    def bind(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        """Bind the names of an import statement."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                self._bind_module(alias, scope)
            return
        for alias in node.names:
            if alias.name == "*":
                self._bind_all(node, scope)
            else:
                self._bind_from(node, alias, scope)

    def _bind_module(self, alias: ast.alias, scope: Scope) -> None:
        whole = alias.name if alias.asname else alias.name.split(".")[0]
        module = self._machine.project.find(scope.module, alias.name if alias.asname else whole)
        scope.set(alias.asname or whole, self._bound(module, scope) if module else External(whole))

    def _bind_from(self, node: ast.ImportFrom, alias: ast.alias, scope: Scope) -> None:
        project, home = self._machine.project, node.module or ""
        name = alias.asname or alias.name
        module = project.find(scope.module, home, node.level) if home else None
        if module is None:
            scope.set(name, self._inner(node, alias, scope))
            return
        if project.acts(module, alias.name):
            scope.module.add_imported([name])
        found = module
        scope.set(
            name,
            Deferred(
                lambda: self.scope_of(found).look(alias.name) or self._inner(node, alias, scope)
            ),
        )

    def _inner(self, node: ast.ImportFrom, alias: ast.alias, scope: Scope) -> Value:
        """A file in a package, or something from outside."""
        whole = f"{node.module or ''}.{alias.name}".strip(".")
        inner = self._machine.project.find(scope.module, whole, node.level)
        return self._bound(inner, scope) if inner else External(whole)

    def _bind_all(self, node: ast.ImportFrom, scope: Scope) -> None:
        project = self._machine.project
        module = project.find(scope.module, node.module, node.level) if node.module else None
        if module is not None:
            inner = self.scope_of(module)
            for name in module.index():
                value = inner.look(name)
                if value is not None:
                    scope.set(name, value)
            scope.module.add_imported(module.acting())

    def _bound(self, module: Module, scope: Scope) -> ProjectModule:
        scope.module.add_imported(module.acting())
        return ProjectModule(self.scope_of(module))

    def scope_of(self, module: Module) -> FileScope:
        """Names of an imported file."""
        if module.path not in self._scopes:
            self._scopes[module.path] = FileScope(module, self._run)
            self._machine.project.mark_imports(module)
        return self._scopes[module.path]

    def _run(self, statement: ast.stmt, scope: Scope) -> None:
        machine = self._machine
        events, machine.path.events = machine.path.events, []
        changes = {"no_grad": False, "uncertain": 0, "uncertain_at_call": 0}
        try:
            with machine.state.entered(module=scope.module, **changes):
                machine.run([statement], scope)
        except Raised:
            pass
        finally:
            events[:0] = machine.path.events  # the import came first
            machine.path.events = events
