"""The changes of a source that a test should notice: one operator, constant or statement each.

Only what means something when the program runs is changed: no docstring, annotation, decorator,
import or assertion, and no words of a message (f-strings, arguments of raise and of log calls).
"""

from __future__ import annotations

import ast
import itertools
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_SWAPS = {
    "<": ["<=", ">="],
    "<=": ["<", ">"],
    ">": [">=", "<="],
    ">=": [">", "<"],
    "==": ["!="],
    "!=": ["=="],
    "is": ["is not"],
    "is not": ["is"],
    "in": ["not in"],
    "not in": ["in"],
    "and": ["or"],
    "or": ["and"],
    "+": ["-"],
    "-": ["+"],
    "*": ["/"],
    "/": ["*"],
    "//": ["*"],
    "%": ["*"],
    "**": ["*"],
    "|": ["&"],
    "&": ["|"],
}
_PAIRS = [("min", "max"), ("any", "all"), ("amin", "amax"), ("minimum", "maximum")]
_OPPOSITES = dict(_PAIRS) | {right: left for left, right in _PAIRS}
_Edit = tuple[str, int, int, str]  # kind, start, end, replacement


@dataclass(frozen=True)
class Mutant:
    """One change of one file.

    Attributes:
        path: Of the file, from the root of the project.
        line: Where the change begins, from 1.
        kind: What was changed, for a reader.
        before, after: The lines that differ, in one line each.
        start, end, replacement: The change, as characters of the source.
        killed_by: The first test that failed, "timeout", or ``None`` before the run and for a
            survivor.
    """

    path: str
    line: int
    kind: str
    before: str
    after: str
    start: int
    end: int
    replacement: str
    killed_by: str | None = None

    def applied(self, source: str) -> str:
        """The changed source."""
        return source[: self.start] + self.replacement + source[self.end :]


class _Text:
    """A source with the positions of its nodes as characters; `ast` counts bytes in a line."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._lines = [f"{line}\n" for line in source.split("\n")]
        self._starts = [0, *itertools.accumulate(map(len, self._lines))]

    def span(self, node: ast.AST) -> tuple[int, int]:
        assert isinstance(node, (ast.stmt, ast.expr, ast.keyword))
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        first = self._offset(node.lineno, node.col_offset)
        return first, self._offset(node.end_lineno, node.end_col_offset)

    def mutant(self, path: str, edit: _Edit) -> Mutant:
        kind, start, end, replacement = edit
        source, line = self.source, self.source.count("\n", 0, start) + 1
        first, last = source.rfind("\n", 0, start) + 1, (source + "\n").find("\n", end)
        before = " ".join(source[first:last].split())
        after = " ".join((source[first:start] + replacement + source[end:last]).split())
        return Mutant(path, line, kind, before, after, start, end, replacement)

    def _offset(self, line: int, column: int) -> int:
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())


def find_mutants(source: str, path: str) -> list[Mutant]:
    """Every change of a source that `_expression_edits` and `_statement_edits` know."""
    text = _Text(source)
    edits: dict[_Edit, None] = {}
    for node in _changeable(ast.parse(source)):
        edits.update(dict.fromkeys(_expression_edits(node, text)))
        edits.update(dict.fromkeys(_statement_edits(node, text)))
    return sorted((text.mutant(path, edit) for edit in edits), key=lambda m: (m.start, m.end))


def draw(sources: dict[str, str], seed: int, count: int) -> list[Mutant]:
    """One mutant for each of `count` random lines, from the sources by path."""
    lines: dict[tuple[str, int], list[Mutant]] = {}
    for path in sorted(sources):
        for mutant in find_mutants(sources[path], path):
            lines.setdefault((path, mutant.line), []).append(mutant)
    generator = random.Random(seed)
    chosen = generator.sample(sorted(lines), min(count, len(lines)))
    return [generator.choice(lines[line]) for line in chosen]


def _changeable(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below one that mean something when the program runs; no text, no types."""
    if isinstance(node, (ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)):
        return
    if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        return
    if isinstance(node, ast.Assign) and _is_union(node.value) and not node.col_offset:
        return  # a name for a type
    yield node
    if isinstance(node, ast.Raise) or (isinstance(node, ast.Call) and _is_log(node.func)):
        return  # the words of a message
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list", "bases"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _changeable(child)


def _is_union(node: ast.expr) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)


def _is_log(function: ast.expr) -> bool:
    return ast.unparse(function).partition(".")[0] in ("logger", "logging", "warnings")


def _expression_edits(node: ast.AST, text: _Text) -> Iterator[_Edit]:
    """Operators, constants, conditions, arguments and bounds."""
    match node:
        case ast.Compare(left=left, comparators=rest):
            yield from _swaps([left, *rest], text)
        case ast.BoolOp(values=values):
            yield from _swaps(values, text)
        case ast.BinOp(left=left, right=right):
            yield from _swaps([left, right], text)
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert() as op):
            start, _ = text.span(node)
            width = 3 if isinstance(op, ast.Not) else 1
            yield "operator removed", start, start + width, ""
        case ast.Constant(value=bool() as value):
            yield "constant", *text.span(node), str(not value)
        case ast.Constant(value=int() | float() as value):
            yield "constant", *text.span(node), repr(value + 1)
            if value:
                yield "constant", *text.span(node), f"(-{value!r})"
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            yield _negated(test, text)
        case ast.comprehension(ifs=tests):
            yield from (_negated(test, text) for test in tests)
        case ast.Slice(lower=lower, upper=upper):
            bounds = [bound for bound in (lower, upper) if bound is not None]
            yield from (("bound removed", *text.span(bound), "") for bound in bounds)
        case ast.Call(func=function, keywords=keywords) if not _is_log(function):
            yield from _call_edits(function, keywords, text)


def _statement_edits(node: ast.AST, text: _Text) -> Iterator[_Edit]:
    """Statements that are left out, jumps, and results that are lost."""
    match node:
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield "result lost", *text.span(value), "None"
        case ast.Break():
            yield "jump", *text.span(node), "continue"
        case ast.Continue():
            yield "jump", *text.span(node), "break"
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Raise() | ast.Delete():
            yield "statement removed", *text.span(node), "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "statement removed", *text.span(node), "pass"
        case ast.AnnAssign(target=ast.Attribute(), value=ast.expr()):
            yield "statement removed", *text.span(node), "pass"


def _swaps(operands: Sequence[ast.expr], text: _Text) -> Iterator[_Edit]:
    if any(isinstance(each, ast.JoinedStr) or _is_text(each) for each in operands[:1]):
        return  # text is only joined or compared
    for left, right in itertools.pairwise(operands):
        start, end = text.span(left)[1], text.span(right)[0]
        gap = re.sub(r"#[^\n]*", lambda m: " " * len(m[0]), text.source[start:end])
        found = re.search(r"[^\s()\\]+(?:\s+(?:not|in)\b)?", gap)  # the rest is parentheses
        assert found is not None
        for other in _SWAPS.get(" ".join(found[0].split()), []):
            yield "operator", start + found.start(), start + found.end(), other


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _negated(test: ast.expr, text: _Text) -> _Edit:
    start, end = text.span(test)
    return "condition negated", start, end, f"not ({text.source[start:end]})"


def _call_edits(
    function: ast.expr, keywords: Sequence[ast.keyword], text: _Text
) -> Iterator[_Edit]:
    name = ast.unparse(function).rpartition(".")[2]
    if name in _OPPOSITES:
        _, end = text.span(function)
        yield "function", end - len(name), end, _OPPOSITES[name]
    for keyword in keywords:
        if keyword.arg is not None:
            start, end = text.span(keyword)
            comma = re.match(r"\s*,\s*", text.source[end:])
            yield "argument removed", start, end + (comma.end() if comma else 0), ""
