"""The results of modules and the gradients that come back to them, one number each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from halfstep.records import LayerRecord
from halfstep.tracing.magnitudes import LargestMagnitudes
from halfstep.tracing.op_trace import dtype_name
from halfstep.tracing.op_walk import is_measurable


@dataclass(frozen=True, slots=True)
class Layer:
    """What is known about a module's tensor before its values are read.

    Attributes:
        module, kind, phase, shape: As in `LayerRecord`.
        dtype: Of the tensor.
    """

    module: str
    kind: str
    phase: str
    dtype: torch.dtype
    shape: torch.Size


class LayerMagnitudes:
    """Collects one tensor after the other; nothing waits before `read`.

    Args:
        backward: Follow the gradients of the results too.
        count: Count the finite values of every tensor, which is a second read of it. Without, a
            CPU counts where a value is not finite, and an accelerator, which would have to be
            waited for, does not.
    """

    def __init__(self, backward: bool = False, count: bool = False) -> None:
        self._layers: list[Layer] = []
        self._largest = LargestMagnitudes()
        self._fractions: list[float | Tensor] = []
        self._backward = backward
        self._count = count

    def __len__(self) -> int:
        return len(self._layers)

    def note(self, module: nn.Module, path: str, result: Any) -> None:
        """Look at a module's result (its first floating tensor); a hook for `ModulePaths`."""
        tensor = first_tensor(result)
        if tensor is None:
            return
        self._add(module, path, "forward", tensor)
        if self._backward and tensor.requires_grad:
            tensor.register_hook(self._hook(module, path))  # type: ignore[no-untyped-call]

    def read(self) -> list[LayerRecord]:
        """One record per tensor, in order.

        Syncs: yes.
        """
        records = []
        found = zip(self._layers, self._largest.read(), self._fractions, strict=True)
        for layer, largest, fraction in found:
            is_finite = largest - largest == 0
            records.append(
                LayerRecord(
                    module=layer.module,
                    kind=layer.kind,
                    phase=layer.phase,
                    dtype=dtype_name(layer.dtype),
                    shape=tuple(layer.shape),
                    largest=largest,
                    finite_fraction=1.0 if is_finite else float(fraction),
                )
            )
        return records

    def _hook(self, module: nn.Module, path: str) -> Callable[[Tensor], None]:
        def look(gradient: Tensor | None) -> None:
            # autograd calls hooks without one where a second backward leaves an output out
            if gradient is not None and is_measurable(gradient):
                self._add(module, path, "backward", gradient)

        return look

    def _add(self, module: nn.Module, path: str, phase: str, tensor: Tensor) -> None:
        kind = type(module).__name__
        self._layers.append(Layer(path, kind, phase, tensor.dtype, tensor.shape))
        with _disable_current_modes(), torch.no_grad():
            low, high = self._largest.add(tensor.detach())
            self._fractions.append(self._finite_fraction(tensor, low, high))

    def _finite_fraction(self, tensor: Tensor, low: Tensor, high: Tensor) -> float | Tensor:
        if not self._count:
            if tensor.device.type != "cpu":
                return math.nan
            if math.isfinite(low.item()) and math.isfinite(high.item()):
                return 1.0
        return torch.isfinite(tensor).double().mean()


def first_tensor(result: Any) -> Tensor | None:
    """The first tensor with values of a module's result."""
    if isinstance(result, Tensor):
        return result if is_measurable(result) else None
    leaves = (x for x in pytree.tree_leaves(result) if isinstance(x, Tensor))
    return next((x for x in leaves if is_measurable(x)), None)
