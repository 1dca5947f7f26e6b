"""Which parameters take part in an update, and the layouts their gradients may have."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from halfstep.update.ranks.shards import has_dtensors, like, local_of, placed_as

# Normal range of the float32 `grad_scale` of the fused kernels.
SMALLEST_SCALE, LARGEST_SCALE = 2.0**-126, 2.0**127

_is_sparse = operator.attrgetter("is_sparse")
_grad_of = operator.attrgetter("grad")


class Gradients(NamedTuple):
    """Parameters and their gradients.

    Attributes:
        params: Those that have a gradient.
        grads: Their gradients, sparse ones coalesced; of a sharded one the part on this rank.
        are_dense: Whether none is sparse.
    """

    params: list[Tensor]
    grads: list[Tensor]
    are_dense: bool


class GradientCollector:
    """The parameters of one optimizer that have a gradient, in the order of its groups.

    Returns the *same* list of parameters as long as the same ones have a gradient, so that what was
    prepared for a list (kernel plans) can be reused by identity.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._all: list[Tensor] = []
        self._sizes: list[int] = []
        self._are_sharded = False
        self._partial: list[Tensor] = []

    def all_parameters(self) -> list[Tensor]:
        """Every parameter of the optimizer, groups that were added later included."""
        sizes = [len(group["params"]) for group in self._optimizer.param_groups]
        if sizes != self._sizes:
            self._sizes = sizes
            self._all = [p for group in self._optimizer.param_groups for p in group["params"]]
            self._are_sharded = has_dtensors(self._all)
        return self._all

    def collect(self) -> Gradients:
        """Parameters with a gradient, and their gradients."""
        parameters = self.all_parameters()
        grads = list(map(_grad_of, parameters))
        if any(map(operator.is_, grads, repeat(None))):
            partial = [p for p, grad in zip(parameters, grads, strict=True) if grad is not None]
            if not _same_objects(partial, self._partial):
                self._partial = partial
            parameters = self._partial
            grads = [grad for grad in grads if grad is not None]
        if self._are_sharded:
            grads = [_part_of(p, grad) for p, grad in zip(parameters, grads, strict=True)]
        if not any(map(_is_sparse, grads)):
            return Gradients(parameters, grads, are_dense=True)
        for index, (p, grad) in enumerate(zip(parameters, grads, strict=True)):
            if grad.is_sparse and not grad.is_coalesced():
                # entries of one row add up, and may overflow
                p.grad = grads[index] = grad.coalesce()
        return Gradients(parameters, grads, are_dense=False)

    def clear(self) -> None:
        """Set every gradient to ``None``."""
        for p in self.all_parameters():
            p.grad = None


def _part_of(p: Tensor, grad: Tensor) -> Tensor:
    """The part of a gradient on this rank, of the same elements as the parameter's own part."""
    placed = placed_as(grad, p)
    if placed is not grad:
        p.grad = placed
    return local_of(placed)


def match_layouts(parameters: Sequence[Tensor], grads: list[Tensor]) -> list[Tensor]:
    """Gradients laid out in memory as their parameters are.

    torch's fused CPU kernels walk both as flat memory: with a transposed gradient they silently
    apply each element to the wrong weight. Autograd never makes such a gradient, hooks and
    assignments to ``.grad`` do. The gradients that differ are copied and assigned back.
    """
    for index, (p, grad) in enumerate(zip(parameters, grads, strict=True)):
        part = local_of(p)
        if grad.layout is torch.strided and not lies_as(grad, part):
            grads[index] = torch.empty_like(part).copy_(grad)
            p.grad = like(p, grads[index])
    return grads


def lies_as(value: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one shape are laid out in memory alike.

    The stride of a dimension of one element says nothing. That of a 1 x 1 convolution in
    channels_last and that of its gradient often differ there.
    """
    own, wanted = value.stride(), other.stride()
    return own == wanted or all(
        a == b or size == 1 for a, b, size in zip(own, wanted, value.shape, strict=True)
    )


def values_of(grad: Tensor) -> Tensor:
    """The stored numbers: the tensor itself, or the values of a coalesced sparse one."""
    return grad._values() if grad.is_sparse else grad


def non_finite_parameters(model_names: dict[int, str], parameters: Sequence[Tensor]) -> list[str]:
    """Names of the parameters whose gradient holds inf or NaN.

    Args:
        model_names: ``id(parameter)`` to name.
        parameters: Parameters with gradients.

    Syncs: yes, once per parameter; only called when something is wrong already.
    """
    bad = [
        p
        for p in parameters
        if p.grad is not None and not bool(torch.isfinite(values_of(local_of(p.grad))).all())
    ]
    return [model_names.get(id(p), f"a parameter of shape {tuple(p.shape)}") for p in bad]


def _same_objects(left: Sequence[object], right: Sequence[object]) -> bool:
    return len(left) == len(right) and all(map(operator.is_, left, right))


def parameter_names(named: Sequence[tuple[str, Parameter]]) -> dict[int, str]:
    """``id(parameter)`` to its dotted name in the model, as it was before `torch.compile`."""
    return {id(parameter): name.replace("_orig_mod.", "") for name, parameter in named}


def divide_(grads: Sequence[Tensor], divisor: float) -> None:
    """Divide gradients in place, also by a number that float32 cannot hold.

    Args:
        grads: Dense gradients of any dtypes and devices, or coalesced sparse ones.
        divisor: Positive.
    """
    values = [values_of(grad) for grad in grads]
    for factor in _representable_factors(divisor):
        if factor != 1.0:
            torch._foreach_div_(values, factor)


def in_float32_range(multiplier: float) -> bool:
    """Whether the fused kernels' float32 `grad_scale` can hold the multiplier."""
    return SMALLEST_SCALE <= multiplier <= LARGEST_SCALE


def _representable_factors(divisor: float) -> list[float]:
    factors = []
    while divisor > LARGEST_SCALE:
        factors.append(LARGEST_SCALE)
        divisor /= LARGEST_SCALE
    while divisor < SMALLEST_SCALE:
        factors.append(SMALLEST_SCALE)
        divisor /= SMALLEST_SCALE
    return [*factors, divisor]
