"""What one file says about precision: autocast, scalers, dtypes, and what is only evaluation."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator

from halfstep.check.source.constants import Evaluator
from halfstep.check.source.module import Module
from halfstep.check.source.scopes import Scopes
from halfstep.check.source.shapes import is_manager
from halfstep.rules.events import Place
from halfstep.rules.source import UNKNOWN, Autocast, FunctionNode, Node, ScalerMade
from halfstep.rules.syntax import argument, calls_in, dotted, inside, last

_UNKNOWN = frozenset([UNKNOWN])
_TORCH = {
    "torch.autocast": None,
    "torch.amp.autocast": None,
    "torch.amp.autocast_mode.autocast": None,
    "torch.cuda.amp.autocast": "cuda",
    "torch.cuda.amp.autocast_mode.autocast": "cuda",
    "torch.cpu.amp.autocast": "cpu",
}
_SCALERS = ("GradScaler", "ShardedGradScaler")
_NO_GRAD = frozenset(["no_grad", "inference_mode"])
_EVALUATION = re.compile(
    r"(^|_)(eval|evaluate|evaluation|val|validate|validation|test|infer|inference|predict|sample"
    r"|generate|demo|export|benchmark|profile)(_|$|\d)"
)


class Facts:
    """Answers of one file to the rules over source text, see `halfstep.rules.source.Source`."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self.path, self.text, self.tree = module.path, module.text, module.tree

    # These stand in the protocol's words and are documented there.
    def calls(self, *names: str) -> list[tuple[str, ast.Call]]:  # noqa: D102
        return self._module.calls(*names)

    def resolve(self, node: ast.expr) -> str | None:  # noqa: D102
        return self._module.resolve(node)

    def place(self, node: ast.AST) -> Place:  # noqa: D102
        return self._module.place(node)

    @functools.cached_property
    def _scopes(self) -> Scopes:
        return Scopes(self.tree)

    @functools.cached_property
    def _evaluator(self) -> Evaluator:
        return Evaluator(self._scopes, self.resolve)

    def nodes(self, kind: type[Node]) -> list[Node]:  # noqa: D102
        return self._scopes.nodes(kind)

    def parents(self, node: ast.AST) -> Iterator[ast.AST]:  # noqa: D102
        return self._scopes.parents(node)

    def function(self, node: ast.AST) -> FunctionNode | ast.Module:  # noqa: D102
        return self._scopes.function(node)

    def functions(self) -> list[FunctionNode | ast.Module]:  # noqa: D102
        return self._scopes.functions()

    def assigned(self, name: str, where: ast.AST) -> list[ast.expr]:  # noqa: D102
        return self._scopes.assigned(name, where)

    def dtypes(self, node: ast.expr) -> frozenset[str]:  # noqa: D102
        return self._evaluator.dtypes(node)

    def constants(self, node: ast.expr) -> frozenset[object]:  # noqa: D102
        return self._evaluator.constants(node)

    def autocasts(self) -> list[Autocast]:  # noqa: D102
        return self._autocasts

    def autocast_around(self, node: ast.AST) -> Autocast | None:  # noqa: D102
        by_body = self._by_statement
        for parent in (node, *self.parents(node)):
            if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                return None
            if isinstance(parent, ast.stmt) and (found := by_body.get(parent)):
                return found
        return None

    def scalers(self) -> list[ScalerMade]:  # noqa: D102
        return self._scalers

    def is_scaler(self, node: ast.expr) -> bool:  # noqa: D102
        name = last(node)
        if not name or isinstance(node, ast.Call):
            return False
        values = self.assigned(dotted(node), node)
        if any(isinstance(value, ast.Call) and last(value) in _SCALERS for value in values):
            return True
        # a scaler of features has none of these
        used = ("step", "update", "unscale_")
        if name in self._unpacked_scales:  # of the project's own: torch's gives the loss alone
            return False
        return self._module.kind_of(name) == "scaler" and any(
            self._module.calls_anywhere(name.lower(), method) for method in used
        )

    @functools.cached_property
    def _unpacked_scales(self) -> set[str]:
        """Names whose ``scale`` gives several values."""
        return {
            last(node.value.func.value)
            for node in self.nodes(ast.Assign)
            if isinstance(node.value, ast.Call)
            and isinstance(node.value.func, ast.Attribute)
            and node.value.func.attr == "scale"
            and len(node.value.args) == 1
            and any(isinstance(target, ast.Tuple) for target in node.targets)
        }

    def has_scaler(self) -> bool:  # noqa: D102
        if self._scalers:
            return any(made.enabled is not False for made in self._scalers)
        return any(
            last(call) == "scale"
            and isinstance(call.func, ast.Attribute)
            and self.is_scaler(call.func.value)
            for call in self.nodes(ast.Call)
        )

    @functools.cached_property
    def _is_evaluation(self) -> bool:
        """Whether the file is named as an evaluation and trains nothing."""
        return bool(_EVALUATION.search(self._module.name)) and ".backward(" not in self.text

    def is_inference(self, node: ast.AST) -> bool:  # noqa: D102
        if self._is_evaluation:
            return True
        for parent in self.parents(node):
            if isinstance(parent, (ast.With, ast.AsyncWith)) and any(
                last(item.context_expr) in _NO_GRAD for item in parent.items
            ):
                return True
            if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)):
                if any(last(decorator) in _NO_GRAD for decorator in parent.decorator_list):
                    return True
                if _EVALUATION.search(parent.name) and not self._trains(parent):
                    return True
        return False

    def _trains(self, function: ast.AST) -> bool:
        return any(last(call) == "backward" for call in calls_in(ast.iter_child_nodes(function)))

    @functools.cached_property
    def _scalers(self) -> list[ScalerMade]:
        found = []
        for call in self.nodes(ast.Call):
            name = self.resolve(call.func) or ""
            if last(call) in _SCALERS and (name.startswith("torch.") or name in _SCALERS):
                found.append(self._scaler(call, name))
        return found

    def _scaler(self, call: ast.Call, name: str) -> ScalerMade:
        devices = frozenset(["cpu" if ".cpu." in name else "cuda"])
        if ".cuda." not in name and ".cpu." not in name and (given := argument(call, 0, "device")):
            devices = self._devices(given)
        return ScalerMade(call, devices, *self._flag(argument(call, None, "enabled")))

    def _devices(self, node: ast.expr) -> frozenset[str]:
        values = self._evaluator.constants(node)
        return frozenset(v.split(":")[0] if isinstance(v, str) else UNKNOWN for v in values)

    def _flag(self, node: ast.expr | None) -> tuple[bool | None, str]:
        if node is None:
            return True, ""
        values = self._evaluator.constants(node)
        known = values in ({True}, {False})
        return (bool(next(iter(values))) if known else None), ast.unparse(node)

    @functools.cached_property
    def _autocasts(self) -> list[Autocast]:
        if "autocast" not in self.text:
            return []
        pairs: list[tuple[ast.expr, list[ast.stmt]]] = []
        for block in (*self.nodes(ast.With), *self.nodes(ast.AsyncWith)):
            assert isinstance(block, (ast.With, ast.AsyncWith))
            pairs += [(item.context_expr, block.body) for item in block.items]
        for function in self.functions():
            pairs += [(d, function.body) for d in getattr(function, "decorator_list", ())]
        found = ((context, self._context(context, body)) for context, body in pairs)
        return [autocast._replace(node=context) for context, autocast in found if autocast]

    @functools.cached_property
    def _by_statement(self) -> dict[ast.stmt, Autocast]:
        return {statement: a for a in self._autocasts for statement in a.body}

    def _context(self, node: ast.expr, body: list[ast.stmt], depth: int = 4) -> Autocast | None:
        """The autocast that a context or decorator is, behind variables, conditions, partials."""
        if isinstance(node, ast.Call):
            name = self.resolve(node.func) or ""
            if name in _TORCH:
                return self._made(node, _TORCH[name], body)
            if last(node) == "partial" and node.args and (self.resolve(node.args[0]) in _TORCH):
                inner = ast.Call(node.args[0], node.args[1:], node.keywords)
                return self._made(inner, _TORCH[self.resolve(node.args[0]) or ""], body)
            if depth and (found := self._behind(node.func, body, depth)):
                return found
            if depth and (found := self._managed(node, body, depth)):
                return found
            if "autocast" in name.lower():  # a framework's, or one of the project
                return Autocast(node, _UNKNOWN, _UNKNOWN, None, name, body)
            return None
        if isinstance(node, ast.IfExp):
            choices = [self._context(n, body, depth) for n in (node.body, node.orelse)]
            found = next((choice for choice in choices if choice), None)
            return found and found._replace(enabled=None, flag=ast.unparse(node.test))
        if (self.resolve(node) or "") in _TORCH:
            return Autocast(node, _UNKNOWN, _UNKNOWN, None, "", body)
        return self._behind(node, body, depth) if depth else None

    def _behind(self, node: ast.expr, body: list[ast.stmt], depth: int) -> Autocast | None:
        values = self.assigned(dotted(node), node) if dotted(node) else []
        choices = [self._context(value, body, depth - 1) for value in values]
        found = next((choice for choice in choices if choice), None)
        return found._replace(enabled=None) if found and len(values) > 1 else found

    def _managed(self, call: ast.Call, body: list[ast.stmt], depth: int) -> Autocast | None:
        """The autocast in which a generator of the file yields, as a context manager."""
        named = [f for f in self.functions() if getattr(f, "name", "") == last(call)]
        if len(named) != 1 or isinstance(named[0], ast.Module) or not is_manager(named[0]):
            return None
        blocks = [n for n in inside(named[0].body) if isinstance(n, (ast.With, ast.AsyncWith))]
        choices = [
            self._context(item.context_expr, body, depth - 1)
            for block in blocks
            if any(isinstance(n, ast.Yield) for n in inside(block.body))
            for item in block.items
        ]
        found = next((choice for choice in choices if choice), None)
        plain = sum(isinstance(n, ast.Yield) for n in inside(named[0].body)) == 1
        return found if plain or found is None else found._replace(enabled=None)

    def _made(self, call: ast.Call, device: str | None, body: list[ast.stmt]) -> Autocast:
        devices = frozenset([device] if device else [])
        if device is None and (given := argument(call, 0, "device_type")) is not None:
            devices = self._devices(given)
            if UNKNOWN in devices:  # a device that is chosen elsewhere may be CUDA
                devices |= {"cuda"}
        # torch.autocast(device, dtype, enabled), torch.cuda.amp.autocast(enabled, dtype)
        dtype = argument(call, 1, "dtype")
        enabled = argument(call, 0 if device else 2, "enabled")
        dtypes = _default(devices)
        if dtype is not None and not is_none(dtype):
            dtypes = self._evaluator.dtypes(dtype)
        return Autocast(call, devices, dtypes, *self._flag(enabled), body)


def is_none(node: ast.expr) -> bool:
    """Whether `node` is written as ``None``."""
    return isinstance(node, ast.Constant) and node.value is None


def _default(devices: frozenset[str]) -> frozenset[str]:
    """What torch casts to on a device unless told otherwise."""
    table = {"cuda": "float16", "cpu": "bfloat16"}
    return frozenset(table.get(device, UNKNOWN) for device in devices)
