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

# sub-package -> sub-packages of the same room that it may import
ALLOWED_INSIDE = {
    "update/loss_scale": set(),
    "update/ranks": set(),
    "update/optimizers": {"ranks"},
    "update/decision": {"optimizers"},
    "update/step": {"decision", "loss_scale", "optimizers", "ranks"},
    "update/grad_scaler": {"decision", "loss_scale", "optimizers", "ranks", "step"},
    "training/window": set(),
    "training/followers": set(),
    "training/surroundings": {"window", "followers"},
    "training/processes": set(),
    "training/engine": {"window", "followers", "processes", "surroundings"},
    "training/checkpoint": {"engine"},
    "training/run": {
        "engine",
        "checkpoint",
        "window",
        "followers",
        "processes",
        "surroundings",
    },
    "check/source": set(),
    "check/documents": set(),
    "check/values": {"source"},
    "check/torch_models": {"values", "source"},
    "check/interpreter": {"torch_models", "values", "source"},
    "check/repair": {"source", "documents", "output"},
    "check/output": {"source", "documents"},
}


def imported_parts(path: Path) -> list[list[str]]:
    """Every module of halfstep that a file imports, split at its dots."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
        elif isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
    return [name.split(".") for name in names if name.split(".")[0] == "halfstep"]


def imported_rooms(path: Path) -> set[str]:
    return {parts[1] for parts in imported_parts(path) if len(parts) > 1}


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


@pytest.mark.parametrize("place", ALLOWED_INSIDE)
def test_sub_package_imports_upwards_only(place: str) -> None:
    room, name = place.split("/")
    others = {key.split("/")[1] for key in ALLOWED_INSIDE if key.startswith(room)}
    for path in (ROOT / place).rglob("*.py"):
        found = {parts[2] for parts in imported_parts(path) if parts[1:2] == [room] and parts[2:]}
        found &= others - {name}
        assert found <= ALLOWED_INSIDE[place], f"{path.name} imports {found}"


def test_every_sub_package_of_a_large_room_is_in_the_table() -> None:
    found = {
        f"{room}/{path.parent.name}"
        for room in ("update", "training", "check")
        for path in (ROOT / room).glob("*/__init__.py")
    }
    assert found == set(ALLOWED_INSIDE)


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
