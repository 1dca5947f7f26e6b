"""One op of a pass, with its inputs: for a second opinion in float64 and for bug reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from halfstep.tracing.op_walk import OpKind, OpWalk, Place


@dataclass(frozen=True)
class Call:
    """An op as it was called.

    Attributes:
        func: The op, as ``torch.ops.aten.mul.Tensor``.
        args, kwargs: Its arguments; tensors are copies from before the op ran.
        result: Copies of its results.
    """

    func: Any
    args: Any
    kwargs: Any
    result: Any

    def largest_in_float64(self, output: int = 0, factor: float = 1.0) -> float | None:
        """Largest magnitude of the same op's result on the same inputs in float64.

        Args:
            output: Which result.
            factor: Multiplies the inputs first.

        Returns:
            inf or NaN where float64 has no finite result either; ``None`` if the op cannot run
            in float64.
        """
        try:
            with torch.no_grad():
                result = self.func(*_widened(self.args, factor), **_widened(self.kwargs, factor))
            results = result if isinstance(result, (tuple, list)) else (result,)
            return float(results[output].abs().max())
        except (RuntimeError, TypeError, ValueError, NotImplementedError):
            return None


class Capture(OpWalk):
    """Keeps one op of a pass.

    Args:
        first: Index of the op's first result.

    Attributes:
        call: The op, once it ran.
    """

    def __init__(self, first: int) -> None:
        super().__init__()
        self.call: Call | None = None
        self._first = first
        self._arguments: tuple[Any, Any] | None = None

    def prepare(self, kind: OpKind, place: Place, args: Any, kwargs: Any) -> None:
        """Copy the arguments of the wanted op."""
        if len(self.seen) == self._first and self.call is None:
            self._arguments = (_copied(args), _copied(kwargs))

    def passed(self, func: Any, args: Any, kwargs: Any, result: Any, positions: range) -> None:
        """Keep the op if it was the wanted one."""
        if self._arguments is not None and self._first in positions:
            self.call = Call(func, *self._arguments, _copied(result))
        self._arguments = None


def _copied(tree: Any) -> Any:
    return pytree.tree_map(lambda x: x.detach().clone() if isinstance(x, Tensor) else x, tree)


def _widened(tree: Any, factor: float) -> Any:
    def widen(leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            return leaf.double() * factor
        if isinstance(leaf, torch.dtype) and leaf.is_floating_point:
            return torch.float64
        return leaf.clone() if isinstance(leaf, Tensor) else leaf

    return pytree.tree_map(widen, tree)
