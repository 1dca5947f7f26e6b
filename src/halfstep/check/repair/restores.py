"""Where a checkpoint is read back: what a repair of the save has to add to the load."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from halfstep.check.repair.statements import Lines, call_of
from halfstep.check.source.module import Module
from halfstep.check.source.names_in_scope import is_set_before
from halfstep.rules.events import Place
from halfstep.rules.rule import Edit

_SAVED = re.compile(r'"(\w+)": ([\w.]+)\.state_dict\(\)')


def loads_too(save: Edit, module: Module) -> tuple[Edit, ...]:
    """What loads the entry that `save` adds, beside each load of the entry in front of it.

    A checkpoint without the entry, or with that of a disabled scaler, still loads. Nothing where
    the file loads such a state already, or where the scaler is made later than the checkpoint is
    read.
    """
    entry, neighbour = _SAVED.search(save.text), _entry_before(save.place, module)
    if entry is None or neighbour is None:
        return ()
    key, owner = entry.groups()
    if module.calls_anywhere(owner.rsplit(".", 1)[-1].lower(), "load_state_dict"):
        return ()
    lines = Lines(module)
    return tuple(
        lines.behind(
            statement,
            f'if {saved}.get("{key}"):',
            f'    {owner}.load_state_dict({saved}["{key}"])',
        )
        for statement, saved in _loads(module.tree, *neighbour)
        if lines.stands_alone(statement) and is_set_before(module, statement.lineno, owner)
    )


def _entry_before(place: Place, module: Module) -> tuple[str, str] | None:
    """Key of the dict entry that ends at `place`, and last part of the name whose state it is."""
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Dict):
            continue
        for key, value in zip(node.keys, node.values, strict=True):
            ends = (value.end_lineno, (value.end_col_offset or 0) + 1)
            if ends == (place.line, place.column) and isinstance(key, ast.Constant):
                owner = getattr(getattr(value, "func", None), "value", None)
                name = getattr(owner, "attr", getattr(owner, "id", ""))
                return (key.value, name) if isinstance(key.value, str) and name else None
    return None


def _loads(tree: ast.Module, key: str, name: str) -> Iterator[tuple[ast.stmt, str]]:
    """Statements ``name.load_state_dict(saved[key])``, and what `saved` is called in each."""
    for statement in ast.walk(tree):
        if not isinstance(statement, ast.Expr):
            continue
        call = call_of(statement)
        if call is None or not isinstance(call.func, ast.Attribute) or len(call.args) != 1:
            continue
        owner, given = call.func.value, call.args[0]
        named = getattr(owner, "attr", getattr(owner, "id", "")) == name
        if call.func.attr != "load_state_dict" or not named or not isinstance(given, ast.Subscript):
            continue
        plain = isinstance(given.value, (ast.Name, ast.Attribute))
        if plain and isinstance(given.slice, ast.Constant) and given.slice.value == key:
            yield statement, ast.unparse(given.value)
