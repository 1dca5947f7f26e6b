"""What a rule over source text may ask; the linter's file object answers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple, Protocol, TypeVar

from halfstep.rules.events import Place

Node = TypeVar("Node", bound=ast.AST)
UNKNOWN = "?"
LOW = frozenset(["float16", "bfloat16"])

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


class Autocast(NamedTuple):
    """A stretch of code that runs under an autocast context.

    Attributes:
        node: The context, as it is written in the ``with`` or as a decorator.
        devices: It may be for; holds `UNKNOWN` where the file does not say.
        dtypes: It may cast to, torch's default for the device put in; likewise.
        enabled: ``None`` where it depends on something.
        flag: Text of what it depends on.
        body: The statements.
    """

    node: ast.expr
    devices: frozenset[str]
    dtypes: frozenset[str]
    enabled: bool | None
    flag: str
    body: list[ast.stmt]

    @property
    def may_be_fp16(self) -> bool:
        """Whether the file says that it casts to FP16, always or by a setting."""
        return self.enabled is not False and "float16" in self.dtypes

    @property
    def may_be_low(self) -> bool:
        """The same, BF16 and dtypes from elsewhere included."""
        return self.enabled is not False and self.dtypes != {"float32"}


class ScalerMade(NamedTuple):
    """A scaler that the file makes; fields as in `Autocast`."""

    call: ast.Call
    devices: frozenset[str]
    enabled: bool | None
    flag: str


class Source(Protocol):
    """One parsed file."""

    path: str
    text: str
    tree: ast.Module

    def calls(self, *names: str) -> list[tuple[str, ast.Call]]:
        """Calls of one of `names` (dotted, as ``"torch.cuda.amp.autocast"``), with that name."""

    def resolve(self, node: ast.expr) -> str | None:
        """Dotted name that `node` stands for, imports and their aliases followed."""

    def place(self, node: ast.AST) -> Place:
        """Range of text of `node`."""

    def nodes(self, kind: type[Node]) -> list[Node]:
        """All nodes of one class."""

    def parents(self, node: ast.AST) -> Iterator[ast.AST]:
        """What `node` stands in, innermost first."""

    def function(self, node: ast.AST) -> FunctionNode | ast.Module:
        """The innermost function around `node`, or the file."""

    def functions(self) -> list[FunctionNode | ast.Module]:
        """All functions of the file, and the file itself for what stands outside of them."""

    def assigned(self, name: str, where: ast.AST) -> list[ast.expr]:
        """What `name` is set to: in the function around `where`, else further out.

        ``self.x`` is looked for in the whole class. Empty for arguments and loop variables.
        """

    def dtypes(self, node: ast.expr) -> frozenset[str]:
        """Names of the dtypes that `node` may stand for, with `UNKNOWN` for what is not known."""

    def constants(self, node: ast.expr) -> frozenset[object]:
        """Constants that `node` may stand for, with `UNKNOWN` likewise."""

    def autocasts(self) -> list[Autocast]:
        """All stretches of autocast in the file."""

    def autocast_around(self, node: ast.AST) -> Autocast | None:
        """The innermost autocast that `node` stands in, in its own function."""

    def scalers(self) -> list[ScalerMade]:
        """All gradient scalers that the file makes."""

    def is_scaler(self, node: ast.expr) -> bool:
        """Whether the file uses `node` as a gradient scaler."""

    def has_scaler(self) -> bool:
        """Whether a scaler that may be enabled is made or used in the file."""

    def is_inference(self, node: ast.AST) -> bool:
        """Whether `node` runs without gradients, in evaluation, or in a test."""
