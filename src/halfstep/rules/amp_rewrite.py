"""`torch.cuda.amp` rewritten as `torch.amp`, with the same meaning."""

from __future__ import annotations

import ast
import re

from halfstep.rules.amp_names import Use, Uses, is_annotation
from halfstep.rules.events import Place
from halfstep.rules.rule import Edit
from halfstep.rules.source import Source
from halfstep.rules.syntax import dotted

# Positions of the old autocast's arguments, which the new one takes in another order.
_ARGUMENTS = ("enabled", "dtype", "cache_enabled")
# Where one of these is said, the new default is not surely FP16: it is that of the context around.
_OTHER_DEFAULT = ("bfloat16", "set_autocast")


def edits_of(source: Source, uses: Uses, use: Use) -> tuple[Edit, ...]:
    """What puts `use` right; nothing where that is not certain.

    A name that was imported changes together with its import and with all that comes by it, so
    that each finding carries the edits of them all.
    """
    if not _is_imported(source, use):
        return tuple(_of_use(source, use, inside_name=True) or ())
    group = [other for other in uses.all() if _is_imported(source, other)]
    parts = [_of_import(source, node) for node in uses.imports()]
    parts += [_of_use(source, other, inside_name=False) for other in group]
    if any(part is None for part in parts) or not _is_only_that(source, uses, group):
        return ()
    return tuple(edit for part in parts if part for edit in part)


def _is_imported(source: Source, use: Use) -> bool:
    """Whether `use` is written by a name that an import of the old module binds."""
    return not re.fullmatch(r"\w+\.(cuda|cpu)\.amp\.\w+", dotted(use.node)) or (
        source.resolve(_first(use.node)) != "torch"
    )


def _first(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node


def _is_only_that(source: Source, uses: Uses, group: list[Use]) -> bool:
    """Whether the imported names mean nothing else, and nothing else is taken by them."""
    names = {alias.asname or alias.name for node in uses.imports() for alias in node.names}
    known = {id(_first(use.node)) for use in group}
    loads = [n for n in source.nodes(ast.Name) if n.id in names]
    return (
        all(len(uses.bindings(name)) == 1 for name in names)
        and all(id(node) in known for node in loads)
        and bool(group)
    )


def _of_import(source: Source, node: ast.Import | ast.ImportFrom) -> list[Edit] | None:
    """The import with its module's name changed; ``None`` where it binds anything else."""
    text = _text(source, node)
    if isinstance(node, ast.Import):
        if len(node.names) != 1:
            return None
        new = re.sub(r"\btorch\s*\.\s*(cuda|cpu)\s*\.\s*amp\b", "torch.amp", text, count=1)
    elif (node.module or "").endswith(("cuda", "cpu")):
        if len(node.names) != 1:
            return None
        new = re.sub(r"from\s+torch\.(cuda|cpu)\s+import", "from torch import", text, count=1)
    else:
        if any(
            a.name not in ("autocast", "GradScaler", "custom_fwd", "custom_bwd") for a in node.names
        ):
            return None
        new = re.sub(r"from\s+torch\.(cuda|cpu)\.amp", "from torch.amp", text, count=1)
    return [Edit(source.place(node), new)] if new != text else None


def _text(source: Source, node: ast.AST) -> str:
    return ast.get_source_segment(source.text, node) or ""


def _of_use(source: Source, use: Use, inside_name: bool) -> list[Edit] | None:
    """The name, if it changes, and the device among the arguments."""
    edits = [_renamed(source, use)] if inside_name else []
    if is_annotation(source, use.node):
        return edits
    if use.last.startswith("custom"):
        arguments = _of_custom(source, use)
    elif use.call is None:
        return None
    else:
        arguments = _of_call(source, use, use.call)
    return None if arguments is None else [*edits, *arguments]


def _renamed(source: Source, use: Use) -> Edit:
    """``.cuda`` goes out of the dotted name."""
    root = _first(use.node)
    text = _text(source, root)
    return Edit(source.place(use.node), f"{text}.amp.{use.last}")


def _of_custom(source: Source, use: Use) -> list[Edit] | None:
    given = f'device_type="{use.device}"'
    if use.call is None:
        end = _after(source.place(use.node))
        return [Edit(end, f"({given})")] if use.decorates else None
    call = use.call
    if any(keyword.arg == "device_type" for keyword in call.keywords):
        return []
    if not call.args:
        return [_opening(source, use, call, given)]
    return [Edit(_after(source.place(call.args[-1])), f", {given}")]


def _of_call(source: Source, use: Use, call: ast.Call) -> list[Edit] | None:
    if any(isinstance(a, ast.Starred) for a in call.args):
        return None
    edits = [_opening(source, use, call, f'"{use.device}"')]
    if use.last == "GradScaler":
        return edits
    named = {keyword.arg for keyword in call.keywords}
    for name, node in zip(_ARGUMENTS, call.args, strict=False):
        start = source.place(node)
        edits.append(Edit(start._replace(end_line=start.line, end_column=start.column), f"{name}="))
        named.add(name)
    if len(call.args) > len(_ARGUMENTS) or None in named:
        return None
    return _with_default(source, use, call, named, edits)


def _with_default(
    source: Source, use: Use, call: ast.Call, named: set[str | None], edits: list[Edit]
) -> list[Edit] | None:
    """The old default dtype written out, where the new one might be another."""
    off = any(
        keyword.arg == "enabled"
        and isinstance(keyword.value, ast.Constant)
        and keyword.value.value is False
        for keyword in call.keywords
    ) or (bool(call.args) and isinstance(call.args[0], ast.Constant) and not call.args[0].value)
    if "dtype" in named or off or not any(word in source.text for word in _OTHER_DEFAULT):
        return edits
    torch = _text(source, _first(use.node)) if "." in dotted(use.node) else "torch"
    resolved = source.resolve(ast.Name(torch, ast.Load()))
    if resolved != "torch" or (torch == "torch" and "import torch\n" not in source.text):
        return None
    default = "float16" if use.device == "cuda" else "bfloat16"
    given = f'"{use.device}", dtype={torch}.{default}'
    return [_opening(source, use, call, given), *edits[1:]]


def _opening(source: Source, use: Use, call: ast.Call, given: str) -> Edit:
    """`given` as the first argument of `call`."""
    name = source.place(use.node)
    comma = ", " if call.args or call.keywords else ""
    line, column = _parenthesis(source.text, name.end_line, name.end_column)
    return Edit(Place(name.path, line, column, line, column), given + comma)


def _parenthesis(text: str, line: int, column: int) -> tuple[int, int]:
    """The place just inside of the call's parenthesis; nothing but blanks stands before it."""
    lines = text.splitlines()
    column_now = column - 1
    while "(" not in lines[line - 1].encode()[column_now:].decode():
        line, column_now = line + 1, 0
    return line, lines[line - 1].encode().index(b"(", column_now) + 2


def _after(place: Place) -> Place:
    """The empty range at the end of `place`."""
    return place._replace(line=place.end_line, column=place.end_column)
