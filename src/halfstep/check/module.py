"""One file of the project: its tree, its imports, and how its names are used."""

from __future__ import annotations

import ast
import os
import re

from halfstep.rules.events import Place

# A file without any of these words has nothing to say to any rule over events.
GATE = re.compile(r"autocast|GradScaler|unscale_|grad_scaler|scaler|amp\.scale")

INTERESTING = frozenset(
    [
        "GradScaler",
        "autocast",
        "scale",
        "unscale_",
        "step",
        "update",
        "backward",
        "zero_grad",
        "clip_grad_norm_",
        "clip_grad_value_",
        "clip_grad_norm",
        "get_scale",
        "update_parameters",
        "AveragedModel",
        "no_sync",
        "load_state_dict",
        "state_dict",
        "clamp_",
        "mul_",
        "div_",
        "nan_to_num_",
        "custom_fwd",
        "scale_loss",
    ]
)
OPTIMIZERS = frozenset(
    [
        "SGD",
        "Adam",
        "AdamW",
        "Adagrad",
        "Adadelta",
        "Adamax",
        "NAdam",
        "RAdam",
        "RMSprop",
        "Rprop",
        "ASGD",
        "LBFGS",
        "Adafactor",
        "Muon",
        "FusedAdam",
        "FusedSGD",
        "FusedLAMB",
        "Lion",
        "Adam8bit",
        "AdamW8bit",
        "PagedAdamW",
        "DistributedFusedAdam",
        "ZeroRedundancyOptimizer",
    ]
)


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
        self._relevant: dict[int, bool] = {}
        self._definitions: set[str] | None = None
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

    def kind_of(self, name: str) -> str | None:
        """What the file uses `name` as: "scaler", "optimizer", "schedule" or nothing known."""
        calls = self._uses().get(name, set())
        low = name.lower()
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

    def _uses(self) -> dict[str, set[str]]:
        """Last part of a name to the methods that are called on it."""
        if self._calls is None:
            self._calls = {}
            for node in ast.walk(self.tree):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
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
        known = self._relevant.get(id(node))
        if known is None:
            known = self._own_relevance(node) or any(
                self.relevant(child) for child in ast.iter_child_nodes(node)
            )
            self._relevant[id(node)] = known
        return known

    def _own_relevance(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Call):
            name = last_name(node.func)
            return name in INTERESTING or name in OPTIMIZERS or name in self._relevant_names()
        if isinstance(node, (ast.Return, ast.Continue, ast.Break, ast.Raise)):
            return True
        if isinstance(node, ast.Assign):
            return isinstance(node.value, (ast.Constant, ast.IfExp, ast.Compare))
        return isinstance(node, ast.Attribute) and node.attr == "grad"

    def _relevant_names(self) -> set[str]:
        """Functions and classes of this file with events in them, and all that call these."""
        if self._definitions is None:
            found = set(self.imported)
            definitions = [
                node
                for node in ast.walk(self.tree)
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            ]
            called = {node: _called_names(node) for node in definitions}
            interesting = INTERESTING | OPTIMIZERS
            size = -1
            while size != len(found):
                size = len(found)
                found |= {d.name for d, names in called.items() if names & (interesting | found)}
            self._definitions = found
        return self._definitions


def _called_names(node: ast.AST) -> set[str]:
    calls = (n for n in ast.walk(node) if isinstance(n, ast.Call))
    return {name for call in calls if (name := last_name(call.func))}


def last_name(node: ast.AST) -> str | None:
    """``c`` of ``a.b.c``, ``c`` of ``c``."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None
