"""`Lineage`: a trace that also knows which op each input came from."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from halfstep.tracing.module_paths import Models, OnResult
from halfstep.tracing.op_trace import OpTrace
from halfstep.tracing.op_walk import OpKind, Place, is_measurable, tensors_in

_SAMPLE = 1 << 13  # values kept of each result; a smaller one is kept whole


@dataclass(frozen=True)
class Origin:
    """Where an input of an op came from.

    Attributes:
        position: Index of the result it is, ``None`` for what no traced op made.
        leaf: Name of the weight, buffer or part of the batch it is, if any.
    """

    position: int | None
    leaf: str = ""


@dataclass(frozen=True)
class Input:
    """One input of an op that was looked at before the op ran.

    Attributes:
        origin: Where it came from.
        has_nan, has_inf: Whether it holds one.
        only_negative_inf: Whether every inf in it is negative, as in attention masks.
        largest_finite: Largest magnitude among its finite values.
    """

    origin: Origin
    has_nan: bool
    has_inf: bool
    only_negative_inf: bool
    largest_finite: float

    @property
    def is_bad(self) -> bool:
        """Whether a value is not finite."""
        return self.has_nan or self.has_inf


@dataclass(frozen=True)
class Output:
    """One result that was counted.

    Attributes:
        has_nan: Whether it holds NaN.
        finite_fraction: Share of finite values.
        largest_finite: Largest magnitude among them.
    """

    has_nan: bool
    finite_fraction: float
    largest_finite: float


class Lineage(OpTrace):
    """Follows results through the ops that use them, by the memory they lie in.

    Args:
        model: Whose modules are named.
        leaves: Name of each weight, buffer and part of the batch, by `memory_of`.
        examine: Indices (of an op's first result) at which inputs and outputs are looked at in
            full. That waits for the device, so it is for the few ops that a first pass found.
        keep_samples: Keep up to 8,192 values of every result, for comparison with another pass.
        on_result: As for `ModulePaths`.

    Attributes:
        origins: First result of an op to the origins of its tensor inputs.
        inputs, outputs: What `examine` asked for; outputs by index of the result.
        samples: One per result, on the device, in float32 (float64 stays).
        cast_from: For a cast of what no op made: a sample of its input, by index of the result.
        cast_whole: Casts of a whole result, in its order of values; others are of a view.
        scaled: Results that carry the loss scale: they were made from the gradient of the loss.
            What activation checkpointing computes again in backward is not among them.
    """

    def __init__(
        self,
        model: Models = None,
        leaves: Mapping[int, str] | None = None,
        *,
        examine: Collection[int] = (),
        keep_samples: bool = False,
        on_result: OnResult | None = None,
    ) -> None:
        super().__init__(model, on_result=on_result)
        self.origins: dict[int, tuple[Origin, ...]] = {}
        self.inputs: dict[int, list[Input]] = {}
        self.outputs: dict[int, Output] = {}
        self.samples: list[Tensor] = []
        self.cast_from: dict[int, Tensor] = {}
        self.cast_whole: set[int] = set()
        self._layouts: list[tuple[object, ...]] = []
        self._leaves = dict(leaves or {})
        self._writers: dict[int, int] = {}
        self.scaled: set[int] = set()
        self._seeds: set[int] = set()
        self._is_scaled = False
        self._examine = frozenset(examine)
        self._keep_samples = keep_samples

    def mark_scaled(self, seed: Tensor) -> None:
        """Follow the loss scale from here: the gradient of the loss with respect to itself."""
        self._seeds.add(memory_of(seed))

    def origin(self, tensor: Tensor) -> Origin:
        """Where a tensor came from; ask while it is alive."""
        memory = memory_of(tensor)
        if memory in self._writers:
            return Origin(self._writers[memory])
        return Origin(None, self._leaves.get(memory, ""))

    def prepare(self, kind: OpKind, place: Place, args: Any, kwargs: Any) -> None:
        """Note the inputs' origins before an op in place hides them."""
        first = len(self.seen)
        tensors = tensors_in((args, kwargs))
        self.origins[first] = tuple(self.origin(t) for t in tensors)
        self._is_scaled = any(o.position in self.scaled for o in self.origins[first]) or any(
            memory_of(t) in self._seeds for t in tensors
        )
        if first in self._examine:
            self.inputs[first] = [_examined(t, self.origin(t)) for t in tensors]
        if self._keep_samples and kind.name == "aten._to_copy" and tensors:
            writer = self.origins[first][0].position
            if writer is None:
                self.cast_from[first] = sample(tensors[0])
            elif self._layouts[writer] == _layout(tensors[0]):
                self.cast_whole.add(first)

    def look(self, position: int, result: Tensor) -> None:
        """Take extremes, and a sample on request."""
        super().look(position, result)
        if self._keep_samples:
            self.samples.append(sample(result))
            self._layouts.append(_layout(result))
        if self.seen[position].first in self._examine:
            self.outputs[position] = _counted(result)

    def passed(self, func: Any, args: Any, kwargs: Any, result: Any, positions: range) -> None:
        """Note who wrote which memory; what is not traced forgets it."""
        if self._is_scaled:
            self.scaled.update(positions)
        position = iter(positions)
        results = result if isinstance(result, (tuple, list)) else (result,)
        for tensor in results:
            if not isinstance(tensor, Tensor) or tensor.layout is not torch.strided:
                continue
            if is_traceable_wrapper_subclass(tensor):
                continue
            if len(positions) and is_measurable(tensor):
                self._writers[memory_of(tensor)] = next(position)
                self._seeds.discard(memory_of(tensor))
            else:
                self._writers.pop(memory_of(tensor), None)
        if not positions:
            self.origins.pop(len(self.seen), None)


def memory_of(tensor: Tensor) -> int:
    """A number for the memory a tensor lies in; views of one tensor share it."""
    return int(tensor.untyped_storage()._cdata)


def sample(values: Tensor) -> Tensor:
    """Up to 8,192 evenly spaced values as a flat float32 copy (float64 stays float64)."""
    flat = values.detach().reshape(-1)
    step = -(-flat.numel() // _SAMPLE)
    kept = flat[::step]
    return kept.clone() if kept.dtype is torch.float64 else kept.to(torch.float32, copy=True)


def _layout(tensor: Tensor) -> tuple[object, ...]:
    """Equal for tensors of one memory with the same values in the same order."""
    order = "contiguous" if tensor.is_contiguous() else (tensor.shape, tensor.stride())
    return tensor.storage_offset(), tensor.numel(), order


def _examined(tensor: Tensor, origin: Origin) -> Input:
    inf = tensor.isinf()
    return Input(
        origin=origin,
        has_nan=bool(tensor.isnan().any()),
        has_inf=bool(inf.any()),
        only_negative_inf=bool((tensor[inf] < 0).all()),
        largest_finite=_largest_finite(tensor),
    )


def _counted(tensor: Tensor) -> Output:
    return Output(
        has_nan=bool(tensor.isnan().any()),
        finite_fraction=float(torch.isfinite(tensor).double().mean()),
        largest_finite=_largest_finite(tensor),
    )


def _largest_finite(tensor: Tensor) -> float:
    finite = tensor[torch.isfinite(tensor)]
    return float(finite.abs().max()) if finite.numel() else 0.0
