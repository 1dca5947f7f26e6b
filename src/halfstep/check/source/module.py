"""One file of the project: its tree, its imports, and how its names are used."""

from __future__ import annotations

import ast
import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from halfstep.check.source.inventory import Definition, Inventory, called_names, last_name
from halfstep.rules.events import Place
from halfstep.rules.syntax import children

_Found = TypeVar("_Found")
_INTERESTING_WORDS = """
    GradScaler autocast scale unscale_ step update backward zero_grad clip_grad_norm_
    clip_grad_value_ clip_grad_norm get_scale update_parameters AveragedModel no_sync
    load_state_dict state_dict save clear_autocast_cache nan_to_num nan_to_num_ clamp_ mul_ div_
    masked_fill_ custom_fwd scale_loss clip_grads_with_norm_ _foreach_mul_ _foreach_div_
    _foreach_clamp_max_ _foreach_clamp_min_
"""
INTERESTING = frozenset(_INTERESTING_WORDS.split())
# A function is followed on its own only if one of these, or a name with "scaler", is in it.
_STRONG_WORDS = """
    Engine train_step GradScaler ShardedGradScaler autocast scale unscale_ get_scale scale_loss
"""
STRONG = frozenset(_STRONG_WORDS.split())
_OPTIMIZER_WORDS = """
    SGD Adam AdamW Adagrad Adadelta Adamax NAdam RAdam RMSprop Rprop ASGD LBFGS Adafactor Muon
    FusedAdam FusedSGD FusedLAMB Lion Adam8bit AdamW8bit PagedAdamW DistributedFusedAdam
    ZeroRedundancyOptimizer
"""
OPTIMIZERS = frozenset(_OPTIMIZER_WORDS.split())
# Of these only what is done to gradients counts, and only what a scaler or an average does.
_IN_PLACE = frozenset(["clamp_", "mul_", "div_", "masked_fill_", "nan_to_num", "nan_to_num_"])
_GRADIENT = re.compile(r"\bgrads?\b|\bgradients?\b|_grads\b")
_BLENDS = frozenset(["lerp_", "add_", "sub_", "copy_", "_foreach_lerp_", "_foreach_mul_"])
_AVERAGE = re.compile(
    r"ema\b|ema_|EMA|average|Average|teacher|shadow|momentum_update|moving|target"
)
_UPDATED = re.compile(r"scaler|ema|amp|avg|averag|swa", re.IGNORECASE)
_OF_MODELS = frozenset(["parameters", "named_parameters", "train", "zero_grad"])

_ENTRY = re.compile(r"[\"']\w*scaler\w*[\"']\s*:\s*[\w.]*scaler\w*\s*[,}\n]")


class Module:
    """A parsed file.

    Args:
        path: As it was given; findings show it.
        text: Its source.

    Raises:
        SyntaxError: It is not Python.
    """

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        self.tree = ast.parse(text, path)
        self._calls: dict[str, set[str]] | None = None
        self._arguments: dict[str, set[str]] = {}
        self._relevant: dict[ast.AST, bool] = {}
        self._acts: dict[ast.AST, bool] = {}
        self._scaling: set[str] | None = None
        self._acting: set[str] | None = None
        self._memo: dict[tuple[str, int], Any] = {}
        self._by_name: dict[str, list[ast.Call]] | None = None
        self._aliases: dict[str, str] | None = None
        self._inventory: Inventory | None = None
        self._kinds: dict[str, str | None] = {}
        self._index: dict[str, list[ast.stmt]] | None = None
        self.imported: set[str] = set()  # names that come from other files of the project

    @property
    def name(self) -> str:
        """Of the file, without its ending."""
        return os.path.splitext(os.path.basename(self.path))[0]

    def place(self, node: ast.AST) -> Place:
        """Range of text of `node`."""
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        end_line, end = getattr(node, "end_lineno", line), getattr(node, "end_col_offset", column)
        return Place(self.path, line, column + 1, end_line, end + 1)

    def calls(self, *names: str) -> list[tuple[str, ast.Call]]:
        """Calls of one of `names` (dotted, imports and aliases followed), with that name."""
        if self._by_name is None:
            self._by_name = {}
            for node in self.inventory().calls:
                if name := self.resolve(node.func):
                    self._by_name.setdefault(name, []).append(node)
        return [(name, call) for name in names for call in self._by_name.get(name, [])]

    def resolve(self, node: ast.expr) -> str | None:
        """Dotted name that `node` stands for, imports and their aliases followed."""
        if isinstance(node, ast.Attribute):
            owner = self.resolve(node.value)
            return f"{owner}.{node.attr}" if owner else None
        return self._imports().get(node.id, node.id) if isinstance(node, ast.Name) else None

    def _imports(self) -> dict[str, str]:
        if self._aliases is None:
            self._aliases = {}
            for node in self.inventory().imports:
                if isinstance(node, ast.Import):
                    pairs = {a.asname: a.name for a in node.names if a.asname}
                    self._aliases.update(pairs)
                elif node.module and not node.level:
                    names = {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
                    self._aliases.update(names)
        return self._aliases

    def kind_of(self, name: str) -> str | None:
        """What the file uses `name` as: "scaler", "optimizer", "schedule" or nothing known."""
        if name not in self._kinds:
            self._kinds[name] = self._kind_of(name)
        return self._kinds[name]

    def _kind_of(self, name: str) -> str | None:
        calls = self._uses().get(name, set())
        low = name.lower()
        if "engine" in low and {"backward", "step", "train_step"} & calls:
            return "engine" if self._uses_halfstep else None
        if "unscale_" in calls or ("scale" in calls and {"step", "update"} & calls):
            return "scaler"
        if "scaler" in low and {"scale", "step", "update", "get_scale"} & calls:
            return "scaler"
        if "step" not in calls and "zero_grad" not in calls and not self._arguments.get(name):
            return None
        if "sched" in low or low.startswith("lr_") or low.endswith("_lr"):
            return "schedule"
        if {"zero_grad", "step"} <= calls or self._arguments.get(name) or "opt" in low:
            return "optimizer"
        return None

    def is_model(self, name: str) -> bool:
        """Whether the file asks `name` for its parameters, or sets it to training."""
        return bool(self._uses().get(name, set()) & _OF_MODELS)

    def calls_anywhere(self, part: str, method: str) -> bool:
        """Whether the file calls `method` on a name that contains `part`."""
        return any(part in n.lower() and method in calls for n, calls in self._uses().items())

    def keeps_scaler(self) -> bool:
        """Whether a dict of the file has a scaler in it, and the states of what is in it."""
        return self.calls_anywhere("", "state_dict") and bool(_ENTRY.search(self.text))

    def _uses(self) -> dict[str, set[str]]:
        """Last part of a name to the methods that are called on it."""
        if self._calls is None:
            self._calls = {}
            for node in self.inventory().calls:
                if isinstance(node.func, ast.Attribute):
                    self._use(node, node.func)
        return self._calls

    def _use(self, call: ast.Call, method: ast.Attribute) -> None:
        assert self._calls is not None
        owner = last_name(method.value)
        if owner:
            self._calls.setdefault(owner, set()).add(method.attr)
        # scaler.step(x) and scaler.unscale_(x) say that x is an optimizer
        if method.attr in ("unscale_", "step") and len(call.args) == 1:
            argument = last_name(call.args[0])
            if argument and "scaler" in (owner or "").lower():
                self._arguments.setdefault(argument, set()).add(method.attr)

    def relevant(self, node: ast.AST) -> bool:
        """Whether anything in `node` can be an event, or decide which events follow."""
        known = self._relevant.get(node)
        if known is None:
            known = self._decides(node) or self._is_event(node)
            known = known or any(self.relevant(child) for child in children(node))
            self._relevant[node] = known
        return known

    def steps(self, node: ast.AST) -> bool:
        """Whether anything in `node` is called as a step is."""
        return self.calls_in(node, "step")

    def calls_in(self, node: ast.AST, name: str) -> bool:
        """Whether a function or method of that name is called on the lines of `node`."""
        first = getattr(node, "lineno", 0)
        last = getattr(node, "end_lineno", first)
        return any(first <= line <= last for line in self._lines_of_calls.get(name, ()))

    @functools.cached_property
    def _lines_of_calls(self) -> dict[str, list[int]]:
        """Last part of a name to the lines on which it is called."""
        found: dict[str, list[int]] = {}
        for call in self.inventory().calls:
            if name := last_name(call.func):
                found.setdefault(name, []).append(call.lineno)
        return found

    def acts(self, node: ast.AST) -> bool:
        """Whether anything in `node` can be an event."""
        known = self._acts.get(node)
        if known is None:
            known = self._is_event(node) or any(self.acts(child) for child in children(node))
            self._acts[node] = known
        return known

    def _decides(self, node: ast.AST) -> bool:
        if isinstance(node, (ast.Return, ast.Continue, ast.Break, ast.Raise)):
            return True
        if isinstance(node, ast.Assign):
            return isinstance(node.value, (ast.Constant, ast.IfExp, ast.Compare))
        return False

    def _is_event(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Call):
            name = last_name(node.func)
            if name in self.imported or name in self.acting() or self._acts_itself(node):
                return True
            if name in ("half", "bfloat16") and isinstance(node.func, ast.Attribute):
                owner = last_name(node.func.value) or ""
                return "model" in owner.lower() or self.is_model(owner)
            return False
        return isinstance(node, ast.Attribute) and node.attr in ("grad", "no_sync")

    def _acts_itself(self, call: ast.Call) -> bool:
        name = last_name(call.func)
        if name in OPTIMIZERS:
            return True
        if name in _BLENDS:
            return self._speaks_of_averages
        if name == "update" and isinstance(call.func, ast.Attribute):
            owner = last_name(call.func.value) or "scaler"
            return bool(_UPDATED.search(owner)) or self.kind_of(owner) == "scaler"
        if name in _IN_PLACE:
            return self._speaks_of_gradients
        if name == "save" and isinstance(call.func, ast.Attribute):
            return last_name(call.func.value) in self._outside  # torch.save, not a picture's
        return name in INTERESTING

    @functools.cached_property
    def _uses_halfstep(self) -> bool:
        """Whether the file imports halfstep, whose engine is not that of others."""
        names = (alias.name for node in self.inventory().imports for alias in node.names)
        modules = (getattr(node, "module", None) for node in self.inventory().imports)
        return any((name or "").split(".")[0] == "halfstep" for name in (*names, *modules))

    @functools.cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree."""
        return list(ast.walk(self.tree))

    @functools.cached_property
    def _outside(self) -> set[str]:
        """Names that imports bind, in whatever part of the file."""
        names = (alias for node in self.inventory().imports for alias in node.names)
        return {alias.asname or alias.name.split(".")[0] for alias in names} | {"torch"}

    @functools.cached_property
    def _speaks_of_averages(self) -> bool:
        return bool(_AVERAGE.search(self.text))

    @functools.cached_property
    def _speaks_of_gradients(self) -> bool:
        return bool(_GRADIENT.search(self.text))

    def is_root(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
        """Whether a scaler or autocast is at work in a function or in what it calls."""
        names = self.inventory().called[node]
        if names & STRONG or names & self._strong() or names & self.imported:
            return True
        if self._uses_halfstep and "backward" in names:
            return True
        return node in self.inventory().scaling

    def _strong(self) -> set[str]:
        """Functions and classes of this file that scale, and all that call these."""
        if self._scaling is None:
            called = self.inventory().called
            self._scaling = _callers({d for d, names in called.items() if names & STRONG}, called)
        return self._scaling

    def inventory(self) -> Inventory:
        """What stands in the file."""
        if self._inventory is None:
            self._inventory = Inventory(self.tree)
        return self._inventory

    def add_imported(self, names: Iterable[str]) -> None:
        """Names that stand for something of another file of the project that can make events."""
        before = len(self.imported)
        self.imported.update(names)
        if len(self.imported) > before:
            self._acting = None
            self._relevant, self._acts = {}, {}

    def acting(self) -> set[str]:
        """Functions and classes of this file in which something can happen."""
        if self._acting is None:
            inventory = self.inventory()
            own = {
                definition
                for definition, calls in inventory.calls_of.items()
                if inventory.called[definition] & self.imported
                or any(map(self._acts_itself, calls))
            }
            self._acting = _callers(own, inventory.called)
        return self._acting

    def has_acting_methods(self, name: str) -> bool:
        """Whether something can happen in a method of a class at the top of the file."""
        classes = (n for n in self.index().get(name, ()) if isinstance(n, ast.ClassDef))
        return any(self.acts(item) for node in classes for item in node.body)

    def called_names(self, node: ast.Try) -> set[str]:
        """What the body of a statement calls."""
        return {name for statement in node.body for name in called_names(statement)}

    def called_in(self, name: str) -> set[str]:
        """What a function or class at the top of the file calls."""
        called = self.inventory().called
        named = (n for n in self.index().get(name, ()) if isinstance(n, Definition))
        return {inner for node in named for inner in called[node]}

    def calls_by_name(self) -> set[str | None]:
        """Last parts of all that the file calls."""
        return {last_name(call.func) for call in self.inventory().calls}

    def from_imports(self) -> list[ast.ImportFrom]:
        """Its imports of single names, at the top of the file."""
        statements = {id(s): s for found in self.index().values() for s in found}
        return [s for s in statements.values() if isinstance(s, ast.ImportFrom)]

    def imported_whole(self) -> list[str]:
        """Files that it imports as a whole, ``import paths``, by their names."""
        whole = (s for s in self.inventory().imports if isinstance(s, ast.Import))
        return [alias.name for s in whole for alias in s.names if "." not in alias.name]

    def index(self) -> dict[str, list[ast.stmt]]:
        """Names that the file binds at its top, each with the statements that do it."""
        if self._index is None:
            self._index = {}
            for statement in self.tree.body:
                for name in dict.fromkeys(_bound_names(statement)):
                    self._index.setdefault(name, []).append(statement)
        return self._index

    def once(self, what: str, node: ast.AST, find: Callable[[], _Found]) -> _Found:
        """What `find` finds, asked once per node: every path comes by here."""
        key = (what, id(node))
        if key not in self._memo:
            self._memo[key] = find()
        found: _Found = self._memo[key]
        return found


def _callers(found: set[Definition], called: dict[Definition, set[str]]) -> set[str]:
    """Names of `found` and of all that call these, by name."""
    names = {definition.name for definition in found}
    size = -1
    while size != len(names):
        size = len(names)
        names |= {definition.name for definition, inner in called.items() if inner & names}
    return names


def _bound_names(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (alias.asname or alias.name.split(".")[0] for alias in node.names)
    elif isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = (n for target in targets for n in ast.walk(target) if isinstance(n, ast.Name))
        yield from (n.id for n in names if isinstance(n.ctx, ast.Store))
    elif isinstance(node, (ast.If, ast.Try)):
        inner = [*node.body, *node.orelse]
        handlers = node.handlers if isinstance(node, ast.Try) else []
        for statement in [*inner, *(s for h in handlers for s in h.body)]:
            yield from _bound_names(statement)
