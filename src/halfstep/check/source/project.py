"""The files of a project, and what an import of one of them stands for. Nothing is executed."""

from __future__ import annotations

import ast
import os
import re

from halfstep.check.source.inventory import last_name
from halfstep.check.source.leads import GATE, Leads
from halfstep.check.source.module import Module

_PUTS = frozenset(["join", "insert", "append"])
_SMALL = 30_000  # characters of a file that may only pass on what others do
# What a large file without a scaler may do for one that has it.
_HELPS = re.compile(
    GATE.pattern
    + r"|\.backward\(|\.zero_grad\(|\.half\(|clip_grad|\.step\(|optim\.|state_dict\(|deepcopy\("
)


class Project:
    """Finds imported files beside the importing one and above it, and reads each once."""

    def __init__(self) -> None:
        self._files: dict[str, Module | None] = {}
        self._found: dict[tuple[str, str, int], Module | None] = {}
        self._acting: dict[tuple[str, str], bool] = {}
        self._marked: set[str] = set()
        self._paths: dict[str, list[str]] = {}
        self._leads = Leads(re.compile(GATE.pattern.encode()))

    def leads(self, path: str, text: str) -> bool:
        """Whether a text without a word of mixed precision imports, at some depth, some."""
        return not GATE.search(text) and self._leads.leads(path, text.encode(errors="ignore"))

    def add(self, module: Module) -> None:
        """A file that has been read already."""
        self._files[os.path.abspath(module.path)] = module

    def module(self, path: str) -> Module | None:
        """A file that was read."""
        return self._files.get(os.path.abspath(path))

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

    def acts(self, module: Module, name: str, depth: int = 3) -> bool:
        """Whether a function or class can make events, itself or in what it calls elsewhere."""
        if name in module.acting() or module.has_acting_methods(name):
            return True
        key = (module.path, name)
        if depth and key not in self._acting:
            self._acting[key] = False
            called = module.called_in(name)
            self._acting[key] = any(
                (found := self.find(module, node.module or "", node.level)) is not None
                and self.acts(found, alias.name, depth - 1)
                for node in module.from_imports()
                for alias in node.names
                if (alias.asname or alias.name) in called
            )
        return self._acting.get(key, False)

    def mark_imports(self, module: Module) -> None:
        """Tell a file which of its imported names can make events."""
        if module.path in self._marked:
            return
        self._marked.add(module.path)
        for node in module.from_imports():
            found = self.find(module, node.module, node.level) if node.module else None
            if found is not None:
                acting = (a for a in node.names if self.acts(found, a.name))
                module.add_imported([a.asname or a.name for a in acting])

    def find(self, importer: Module, dotted: str, level: int = 0) -> Module | None:
        """The file that ``import dotted`` in `importer` means, if it is one of the project."""
        key = (importer.path, dotted, level)
        if key not in self._found:
            self._found[key] = self._look(importer, dotted, level)
        return self._found[key]

    def _look(self, importer: Module, dotted: str, level: int) -> Module | None:
        folder = os.path.dirname(os.path.abspath(importer.path))
        relative = dotted.replace(".", os.sep)
        for _ in range(max(level - 1, 0)):
            folder = os.path.dirname(folder)
        folders = [folder] if level else [folder, *_parents(folder), *self._put_on_path(importer)]
        for place in folders:
            for ending in (".py", os.sep + "__init__.py"):
                module = self._read(os.path.join(place, relative + ending), importer)
                if module is not None:
                    return module
        return None

    def _put_on_path(self, importer: Module) -> list[str]:
        """Folders that a script, or a file beside it that it imports whole, makes importable."""
        if importer.path not in self._paths:
            folder = os.path.dirname(os.path.abspath(importer.path))
            texts = [(importer.path, importer.text)]
            for name in importer.imported_whole():
                beside = self._read(os.path.join(folder, f"{name}.py"), importer)
                if beside is not None:
                    texts.append((beside.path, beside.text))
            found_in = [folders_on_path(path, text) for path, text in texts if "sys.path" in text]
            self._paths[importer.path] = [place for places in found_in for place in places]
        return self._paths[importer.path]

    def _read(self, path: str, importer: Module) -> Module | None:
        if path not in self._files:
            self._files[path] = None
            if os.path.isfile(path):
                self._files[path] = _parsed(path, importer)
        return self._files[path]


def folders_on_path(path: str, text: str) -> list[str]:
    """Folders that a file joins from its own place and texts, as ``sys.path.insert`` takes them."""
    home, found = os.path.dirname(os.path.abspath(path)), []
    calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    for call in calls:
        if last_name(call.func) not in _PUTS:
            continue
        parts = [node.value for node in call.args if isinstance(node, ast.Constant)]
        names = [part for part in parts if isinstance(part, str)]
        place = os.path.normpath(os.path.join(home, *names))
        if names and os.path.isdir(place):
            found.append(place)
    return found


def _parents(folder: str) -> list[str]:
    """Two folders up: scripts import from the root of their repository."""
    up = os.path.dirname(folder)
    return [up, os.path.dirname(up)]


def _parsed(path: str, importer: Module) -> Module | None:
    shown = os.path.relpath(path) if not os.path.isabs(importer.path) else path
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        return Module(shown, text) if len(text) < _SMALL or _HELPS.search(text) else None
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
