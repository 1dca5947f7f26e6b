"""The first op that turns finite numbers into inf or NaN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.module_tracker import ModuleTracker


@dataclass(frozen=True)
class BadOp:
    """One op with a result that is not finite.

    Attributes:
        op, module, phase, dtype, shape, largest_input, finite_fraction: As in `Diagnosis`.
    """

    op: str
    module: str
    phase: str
    dtype: str
    shape: tuple[int, ...]
    largest_input: float
    finite_fraction: float


# They place constants, -inf in attention masks above all, or hand out memory as it is.
_PLACES_CONSTANTS = (
    "empty", "new_empty", "full", "new_full", "fill", "masked_fill", "where", "scalar_tensor",
    "lift_fresh", "detach", "constant_pad",
)  # fmt: skip


class FirstBadOp(TorchDispatchMode):
    """Watches every forward and backward op below autocast until one breaks.

    An op breaks if it makes NaN from inputs without NaN, or inf from finite inputs. Where none
    does (a NaN came in with the batch or the weights), the first op that hands it on counts.

    For replays only: it reads every result back, which costs a wait per op.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._producer: BadOp | None = None
        self._propagator: BadOp | None = None
        self._tracker = ModuleTracker()

    @property
    def first(self) -> BadOp | None:
        """The op that broke, ``None`` if all results were finite."""
        return self._producer or self._propagator

    def __enter__(self) -> FirstBadOp:
        self._tracker.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        self._tracker.__exit__(*exception)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._producer is not None:
            return func(*args, **kwargs)
        inputs = _floating((args, kwargs))
        had_nan = any(bool(t.isnan().any()) for t in inputs)  # before an op in place
        had_inf = any(bool(t.isinf().any()) for t in inputs)
        largest = max((float(t.abs().max()) for t in inputs if t.numel()), default=0.0)
        result = func(*args, **kwargs)
        name = str(func).rsplit(".", 1)[0]
        if not name.rpartition(".")[2].strip("_").startswith(_PLACES_CONSTANTS):
            for output in _floating(result):
                makes_nan = not had_nan and bool(output.isnan().any())
                makes_inf = not (had_nan or had_inf) and bool(output.isinf().any())
                if makes_nan or makes_inf:
                    self._producer = self._describe(name, output, largest)
                    break
                if self._propagator is None and bool(output.isnan().any()):
                    self._propagator = self._describe(name, output, largest)
        return result

    def _describe(self, name: str, output: Tensor, largest: float) -> BadOp:
        finite = torch.isfinite(output)
        return BadOp(
            op=name,
            module=max(self._tracker.parents - {"Global"}, key=len, default=""),
            phase="backward" if self._tracker.is_bw else "forward",
            dtype=str(output.dtype).removeprefix("torch."),
            shape=tuple(output.shape),
            largest_input=largest,
            finite_fraction=float(finite.float().mean()) if output.numel() else 1.0,
        )


def _floating(tree: Any) -> list[Tensor]:
    leaves = pytree.tree_leaves(tree)
    return [t.detach() for t in leaves if isinstance(t, Tensor) and t.is_floating_point()]
