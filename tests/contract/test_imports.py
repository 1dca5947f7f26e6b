"""Rooms import upwards only, and light things stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import halfstep

ROOT = Path(halfstep.__file__).parent
# room -> rooms it may import; records is open to all
ALLOWED = {
    "records": set(),
    "numerics": set(),
    "precision": {"numerics"},
    "update": {"numerics"},
    "tracing": {"numerics"},
    "training": {"update", "precision", "tracing", "numerics"},
    "tools": {"training", "tracing", "update", "precision", "numerics"},
    "report": {"numerics", "precision"},
    "recipes": {"training"},
    "rules": set(),
    "check": {"rules"},
    "cli": {
        "training",
        "tools",
        "report",
        "precision",
        "numerics",
        "update",
        "recipes",
        "check",
        "rules",
    },
}


def imported_rooms(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
        elif isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
    parts = [name.split(".") for name in names]
    return {name[1] for name in parts if name[0] == "halfstep" and len(name) > 1}


def top_level_modules(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


def test_every_room_is_in_the_table() -> None:
    rooms = {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()}
    assert rooms == set(ALLOWED)


@pytest.mark.parametrize("room", ALLOWED)
def test_room_imports_upwards_only(room: str) -> None:
    for path in (ROOT / room).rglob("*.py"):
        found = imported_rooms(path) - {room, "records"}
        assert found <= ALLOWED[room], f"{path.name} imports {found - ALLOWED[room]}"


def test_records_rules_and_check_import_the_standard_library_only() -> None:
    for path in (p for room in ("records", "rules", "check") for p in (ROOT / room).rglob("*.py")):
        assert top_level_modules(path) <= {*sys.stdlib_module_names, "halfstep"}, path


# an extra, imported where it is needed only: it keeps the comments of a precision.toml
OPTIONAL = {"policy_file.py": {"tomlkit"}}


def test_library_rooms_import_torch_and_nothing_else() -> None:
    for room in ("numerics", "precision", "tracing", "update", "training"):
        for path in (ROOT / room).rglob("*.py"):
            allowed = {*sys.stdlib_module_names, "halfstep", "torch", *OPTIONAL.get(path.name, ())}
            assert top_level_modules(path) <= allowed, path


def test_import_of_halfstep_loads_no_torch() -> None:
    code = "import sys, halfstep; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
