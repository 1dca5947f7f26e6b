"""What an expression may stand for: constants and dtypes, looked up without running anything."""

from __future__ import annotations

import ast
from collections.abc import Callable

from halfstep.check.source.scopes import Scopes
from halfstep.rules.source import UNKNOWN
from halfstep.rules.syntax import argument, dotted, last

_NOTHING_KNOWN: frozenset[object] = frozenset([UNKNOWN])
_DTYPES = {
    "float16": "float16",
    "half": "float16",
    "bfloat16": "bfloat16",
    "float32": "float32",
    "float": "float32",
    "float64": "float64",
    "double": "float64",
}
_DEPTH = 12


class Dtype(str):
    """A dtype of torch, as a value that is not a text."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dtype) and str.__eq__(self, other)

    def __hash__(self) -> int:
        return hash(("dtype", str(self)))


class Evaluator:
    """Follows names to what they are set to; all of it, if that is more than one thing."""

    def __init__(self, scopes: Scopes, resolve: Callable[[ast.expr], str | None]) -> None:
        self._scopes = scopes
        self._resolve = resolve

    def constants(self, node: ast.expr) -> frozenset[object]:
        """Constants and dtypes that `node` may stand for, `UNKNOWN` among them if not all."""
        return self._look(node, _DEPTH)

    def dtypes(self, node: ast.expr) -> frozenset[str]:
        """The same, other things than dtypes being unknown."""
        found = self.constants(node)
        return frozenset(str(v) if isinstance(v, Dtype) else UNKNOWN for v in found)

    def _look(self, node: ast.expr, depth: int) -> frozenset[object]:
        if depth == 0:
            return _NOTHING_KNOWN
        if isinstance(node, ast.Constant):
            return frozenset([node.value])
        if isinstance(node, ast.IfExp):
            return self._look(node.body, depth - 1) | self._look(node.orelse, depth - 1)
        if isinstance(node, ast.BoolOp):
            return frozenset().union(*(self._look(v, depth - 1) for v in node.values))
        if isinstance(node, ast.Subscript):
            return self._item(node, depth - 1)
        if isinstance(node, ast.Call):
            return self._call(node, depth - 1)
        if isinstance(node, (ast.Name, ast.Attribute)):
            return self._name(node, depth - 1)
        return _NOTHING_KNOWN

    def _name(self, node: ast.Name | ast.Attribute, depth: int) -> frozenset[object]:
        whole = self._resolve(node) or ""
        if whole.startswith("torch.") and whole.count(".") == 1:
            dtype = _DTYPES.get(whole[6:])
            return frozenset([Dtype(dtype)]) if dtype else _NOTHING_KNOWN
        name = dotted(node)
        values = self._scopes.assigned(name, node) if name else []
        default = self._scopes.default(name, node) if not values else None
        if values:
            found = frozenset().union(*(self._look(value, depth) for value in values))
            argument_too = self._scopes.is_argument(name, node)
            return found | _NOTHING_KNOWN if argument_too else found
        if default is not None:
            return self._look(default, depth) | _NOTHING_KNOWN
        if isinstance(node, ast.Attribute) and node.attr == "type":  # of a torch.device
            return self._look(node.value, depth)
        return _NOTHING_KNOWN

    def _item(self, node: ast.Subscript, depth: int) -> frozenset[object]:
        """One of a dict written out; any of them, if the key is not known."""
        table: ast.expr = node.value
        if isinstance(table, ast.Name) and len(given := self._scopes.assigned(table.id, node)) == 1:
            table = given[0]
        if not isinstance(table, ast.Dict) or any(key is None for key in table.keys):
            return _NOTHING_KNOWN
        keys = [self._look(key, depth) for key in table.keys if key is not None]
        wanted = self._look(node.slice, depth)
        found: frozenset[object] = frozenset()
        for key, value in zip(keys, table.values, strict=True):
            if UNKNOWN in wanted or key & wanted:
                found |= self._look(value, depth)
        return found or _NOTHING_KNOWN

    def _call(self, node: ast.Call, depth: int) -> frozenset[object]:
        whole = self._resolve(node.func)
        if whole == "torch.device" and node.args:
            return frozenset(
                v.split(":")[0] if isinstance(v, str) and not isinstance(v, Dtype) else UNKNOWN
                for v in self._look(node.args[0], depth)
            )
        if whole == "getattr" and len(node.args) > 1 and last(node.args[0]) == "torch":
            names = self._look(node.args[1], depth)
            return frozenset(Dtype(_DTYPES[n]) if n in _DTYPES else UNKNOWN for n in names)
        if whole == "bool" and (given := argument(node, 0)) is not None:
            return self._look(given, depth)
        return _NOTHING_KNOWN
