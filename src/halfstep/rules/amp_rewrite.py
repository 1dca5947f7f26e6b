"""`torch.cuda.amp` rewritten as `torch.amp`, with the same meaning."""

from __future__ import annotations

import ast
import re

from halfstep.rules.amp_names import Use, Uses, is_annotation
from halfstep.rules.events import Place
from halfstep.rules.rule import Edit
from halfstep.rules.source import Source
from halfstep.rules.syntax import argument, dotted

# Positions of the old autocast's arguments, which the new one takes in another order.
_ARGUMENTS = ("enabled", "dtype", "cache_enabled")
_IMPORTS_TORCH = re.compile(r"^import torch( *#.*)?$", re.MULTILINE)
# From the end of the name: closing parentheses around it, then the opening one and all blanks.
_LINE_END = re.compile(r"\r\n|\r|\n")  # `str.splitlines` cuts at form feeds too
_LINE_AND_PARENTHESIS = re.compile(rb"[\s)\\]*\((?:\s*(?=[^\s#)]))?")
# Where one of these is said, the new default is not surely FP16: it is that of the context around.
_OTHER_DEFAULT = ("bfloat16", "set_autocast")


def edits_of(source: Source, uses: Uses, use: Use) -> tuple[Edit, ...]:
    """What puts `use` right; nothing where that is not certain.

    A name that was imported changes together with its import and with all that comes by it, so
    that each finding carries the edits of them all.
    """
    if not _is_imported(source, use):
        whole = not _is_tested(source, uses, use)
        return tuple((whole and _of_use(source, use, inside_name=True)) or ())
    group = [other for other in uses.all() if _is_imported(source, other)]
    parts = [_of_import(source, node) for node in uses.imports()]
    parts += [_of_use(source, other, inside_name=False) for other in group]
    if any(part is None for part in parts) or not _is_only_that(source, uses, group):
        return ()
    return tuple(edit for part in parts if part for edit in part)


def _is_imported(source: Source, use: Use) -> bool:
    """Whether `use` is written by a name that an import binds, rather than from torch down."""
    return source.resolve(_first(use.node)) != "torch"


def _is_tested(source: Source, uses: Uses, use: Use) -> bool:
    """Whether the old class is asked for elsewhere, which an object of the new one is not."""
    return any(
        other.call is None and other.last == use.last and is_annotation(source, other.node)
        for other in uses.all()
        if not _is_imported(source, other)
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
    exported = "__all__" in source.text or source.path.endswith("__init__.py")
    return (
        not exported
        and all(dotted(_first(use.node)) in names for use in group)
        and all(len(uses.bindings(name)) == 1 for name in names)
        and all(id(node) in known for node in loads)
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
    given = f'"{use.device}"'
    if use.last == "GradScaler":
        return [_opening(source, use, call, given)]
    named = {keyword.arg for keyword in call.keywords} | {*_ARGUMENTS[: len(call.args)]}
    if len(call.args) > len(_ARGUMENTS) or None in named:
        return None
    dtype = _default(source, use, call, named)
    if dtype is None:
        return None
    names = list(zip(_ARGUMENTS, call.args, strict=False))
    first = f"{names[0][0]}=" if names else ""
    edits = [_opening(source, use, call, given + dtype, first)]
    for name, node in names[1:]:
        start = source.place(node)
        if not _follows_a_comma(source.text, start):
            return None
        edits.append(Edit(start._replace(end_line=start.line, end_column=start.column), f"{name}="))
    return edits


def _follows_a_comma(text: str, place: Place) -> bool:
    """Whether an argument begins where its node does, which parentheses around it prevent."""
    before = _LINE_END.split(text)[: place.line]
    before[-1] = before[-1].encode()[: place.column - 1].decode()
    return "".join(before).rstrip().endswith(",")


def _default(source: Source, use: Use, call: ast.Call, named: set[str | None]) -> str | None:
    """The old default dtype written out, where the new one might be another.

    ``None`` where that is needed and torch has no name here to write it with.
    """
    given = call.args[0] if call.args else argument(call, None, "enabled")
    off = isinstance(given, ast.Constant) and given.value is False
    if "dtype" in named or off or not any(word in source.text for word in _OTHER_DEFAULT):
        return ""
    dtype = "float16" if use.device == "cuda" else "bfloat16"
    return f", dtype=torch.{dtype}" if _IMPORTS_TORCH.search(source.text) else None


def _opening(source: Source, use: Use, call: ast.Call, given: str, then: str = "") -> Edit:
    """`given` as the first argument of `call`, and `then` in front of what was the first."""
    name = source.place(use.node)
    comma = ", " if call.args or call.keywords else ""
    line, column = _first_argument(source.text, name.end_line, name.end_column)
    return Edit(Place(name.path, line, column, line, column), given + comma + then)


def _first_argument(text: str, line: int, column: int) -> tuple[int, int]:
    """The place of the first argument of a call whose name ends at the given one."""
    lines = [row.encode() for row in _LINE_END.split(text)]
    start = _LINE_AND_PARENTHESIS.match(b"\n".join(lines[line - 1 :])[column - 1 :])
    assert start is not None  # it is a call
    passed = start.group()
    down = passed.count(b"\n")
    return line + down, (len(passed) - passed.rfind(b"\n")) if down else column + len(passed)


def _after(place: Place) -> Place:
    """The empty range at the end of `place`."""
    return place._replace(line=place.end_line, column=place.end_column)
