"""Doing what the doctor printed, to the letter: islands, blocks and loss scales."""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import halfstep as hs
from halfstep.records import Diagnosis
from halfstep.training.rng import rng_state, set_rng_state

# What is read is what a user would copy: both ways of writing an island, a block with its place,
# and a loss scale with its arguments.
_TABLE = re.compile(r"modules = \{ (?P<table>.*?) \}")
_MODULE = re.compile(r"Keep the module (?P<name>\S+) in FP32")
_BLOCK = re.compile(r"with hs\.fp32\(\):` around .*? at (?P<file>[^\s:]+\.py):(?P<line>\d+)")
_SCALE = re.compile(r"(?P<call>(?:Dynamic|Static)LossScale\((?:[^()]|\([^()]*\))*\))")
_NORM = 0.05  # relative difference of a gradient norm from FP32's that is still the same


@dataclass(frozen=True)
class Instructions:
    """What a diagnosis tells its reader to do.

    Attributes:
        islands: Patterns for ``[modules]`` of a ``precision.toml``.
        blocks: ``file.py:12`` where ``with hs.fp32():`` goes.
        scales: Calls such as ``DynamicLossScale(init_scale=1024)``.
    """

    islands: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()
    scales: tuple[str, ...] = ()

    @property
    def has_any(self) -> bool:
        """Whether there is something to follow."""
        return bool(self.islands or self.blocks or self.scales)


def instructions(found: Diagnosis) -> Instructions:
    """What is printed under "what to do" for all causes; those of notes tell a scale only.

    Args:
        found: The diagnosis.
    """
    islands: list[str] = []
    blocks: list[str] = []
    scales: list[str] = []
    for cause in found.causes:
        text = " ".join(cause.remedy.split())
        scales += [m["call"] for m in _SCALE.finditer(text)]
        if cause.severity != "error":
            continue
        for table in _TABLE.finditer(text):
            islands += re.findall(r'"([^"]+)" = "fp32"', table["table"])
        islands += [m["name"] for m in _MODULE.finditer(text)]
        blocks += [f"{m['file']}:{m['line']}" for m in _BLOCK.finditer(text)]
    unique = [tuple(dict.fromkeys(each)) for each in (islands, blocks, scales)]
    return Instructions(*unique)


def policy_file(told: Instructions, path: Path) -> Path:
    """A ``precision.toml`` with the islands as they were printed.

    Args:
        told: What to do.
        path: Where to write it.
    """
    table = ", ".join(f'"{name}" = "fp32"' for name in told.islands)
    lines = ["version = 1", 'format = "fp16"', 'base = "cuda"', f"modules = {{ {table} }}"]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def scale_problem(recipe: hs.Recipe, call: str, is_all: bool) -> str:
    """One step of FP16 training at a printed loss scale: empty where it is taken and right.

    Args:
        recipe: Of the case.
        call: As printed.
        is_all: Whether the scale is all that is wrong, so that the gradients must be right too.
    """
    chance = rng_state()  # of NumPy too: some models mask their inputs by it
    try:
        scale = _pasted(call)
        norm = _grad_norm(recipe, hs.Policy("fp16", base="cuda"), scale)
    except (hs.HalfstepError, SyntaxError, TypeError) as error:
        return f"{call} cannot be pasted: {error}"
    if norm is None:
        return f"the first step at {call} is skipped"
    if not is_all:
        return ""
    set_rng_state(chance)
    reference = _grad_norm(recipe, hs.Policy("fp32", base="cuda"), hs.NoLossScale())
    if reference is None or abs(norm - reference) > _NORM * reference:
        return f"the gradient norm at {call} is {norm:.4g}, in FP32 {reference}"
    return ""


def _pasted(call: str) -> Any:
    names = {name: getattr(hs, name) for name in ("DynamicLossScale", "StaticLossScale")}
    return eval(call, {"__builtins__": {}}, names)  # as a user's file does with what is pasted


def _grad_norm(recipe: hs.Recipe, policy: hs.Policy, scale: Any) -> float | None:
    """Of the first step; ``None`` where it is skipped."""
    torch.manual_seed(0)
    model = recipe.model()
    engine = hs.Engine(model, recipe.optimizer(model), precision=policy, loss_scale=scale)
    outcome = engine.train_step(hs.Window([next(iter(recipe.batches()))]), recipe.loss_fn)
    if outcome.skipped:
        return None
    return float(outcome.grad_norm)


# ---- blocks: the file of a case with `with hs.fp32():` where it was told to be -------------------


class _Blocks(importlib.abc.Loader):
    """Loads a module with blocks around statements; line numbers stay those of the file."""

    def __init__(self, path: Path, lines: Sequence[int]) -> None:
        self.path = path
        self.lines = lines

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        tree = ast.parse(self.path.read_text(encoding="utf-8"))
        for line in self.lines:
            put_block(tree, line)
        exec(compile(ast.fix_missing_locations(tree), str(self.path), "exec"), module.__dict__)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, blocks: dict[str, tuple[Path, list[int]]]) -> None:
        self.blocks = blocks

    def find_spec(
        self, fullname: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self.blocks:
            return None
        return importlib.util.spec_from_loader(fullname, _Blocks(*self.blocks[fullname]))


def put_blocks(blocks: Sequence[str]) -> list[str]:
    """Have the files of cases import with blocks where they were told to be.

    Args:
        blocks: As ``losses.py:12``.

    Returns:
        Those that are not in a file of the zoo.
    """
    here = Path(__file__).parent
    wanted: dict[str, tuple[Path, list[int]]] = {}
    foreign = []
    for block in blocks:
        file, _, line = block.rpartition(":")
        name = Path(file).name
        paths = [p for folder in ("healthy", "planted") for p in (here / folder).glob(name)]
        if not paths:
            foreign.append(block)
            continue
        module = f"zoo.{paths[0].parent.name}.{paths[0].stem}"
        wanted.setdefault(module, (paths[0], []))[1].append(int(line))
    sys.meta_path.insert(0, _Finder(wanted))
    return foreign


class NotLiteralError(ValueError):
    """A block cannot go where it was told to be without the model inside of it."""


def put_block(tree: ast.Module, line: int) -> None:
    """``with hs.fp32():`` around the ops of a function that surround a line.

    As a reader does it: the statement of that line and its neighbours, as far as none of them calls
    a module.

    Args:
        tree: Of a file; changed in place.
        line: Of the file.

    Raises:
        NotLiteralError: The statement itself calls a module.
    """
    body, position = _innermost(tree.body, line)
    if _calls_a_module(body[position]):
        raise NotLiteralError(f"line {line} calls a module in the same statement")
    first = last = position
    while first > 0 and _is_op(body[first - 1]):
        first -= 1
    while last + 1 < len(body) and _is_op(body[last + 1]):
        last += 1
    context = ast.parse("__import__('halfstep').fp32()", mode="eval").body
    block = ast.With([ast.withitem(context)], body[first : last + 1])
    body[first : last + 1] = [ast.copy_location(block, body[first])]


def _innermost(body: list[ast.stmt], line: int) -> tuple[list[ast.stmt], int]:
    for position, statement in enumerate(body):
        if statement.lineno <= line <= (statement.end_lineno or statement.lineno):
            for inner in _bodies(statement):
                last = inner[-1].end_lineno or inner[-1].lineno
                if inner[0].lineno <= line <= last:
                    return _innermost(inner, line)
            return body, position
    raise NotLiteralError(f"there is no statement at line {line}")


def _bodies(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        if inner := getattr(statement, name, None):
            yield inner


def _is_op(statement: ast.stmt) -> bool:
    kinds = (ast.Assign, ast.AugAssign, ast.Return, ast.Expr)
    return isinstance(statement, kinds) and not _calls_a_module(statement)


def _calls_a_module(statement: ast.stmt) -> bool:
    """``model(...)``, ``self.layer(...)`` or ``model["name"](...)``; methods begin with ``_``."""
    for node in ast.walk(statement):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Subscript):
            called = called.value
        if isinstance(called, ast.Name) and called.id == "model":
            return True
        is_own = isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name)
        if is_own and called.value.id == "self" and not called.attr.startswith("_"):
            return True
    return False
