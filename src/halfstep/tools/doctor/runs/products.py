"""Products in 16 bits as a GPU computes them, on a CPU: sums in FP32, rounded once at the end."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from halfstep.precision import Policy

_HALVES = (torch.float16, torch.bfloat16)
_aten = torch.ops.aten
_PRODUCTS = frozenset(
    (
        _aten.mm.default,
        _aten.addmm.default,
        _aten.bmm.default,
        _aten.baddbmm.default,
        _aten.convolution.default,
        _aten.convolution_backward.default,
    )
)


class GpuProducts(TorchDispatchMode):
    """Below a tracer: enter it first, and the tracer sees the ops as they were called.

    A CPU without 16-bit arithmetic takes 12 times longer for such a product, and rounds in between
    in another way than any GPU does.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in _PRODUCTS:
            return func(*args, **kwargs)
        given = [a for a in args if isinstance(a, Tensor)]
        dtype = given[0].dtype if given else None
        if dtype not in _HALVES or any(map(is_traceable_wrapper_subclass, given)):
            return func(*args, **kwargs)
        wide = pytree.tree_map_only(Tensor, _widened, (args, kwargs))
        return pytree.tree_map_only(Tensor, lambda t: t.to(dtype), func(*wide[0], **wide[1]))


def gpu_products(policy: Policy, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """The context for a run of a policy; one that does nothing where the device's own ops count.

    Args:
        policy: With CUDA's op lists, a CPU stands for a GPU.
        device: Where the run is.
    """
    stands_for_gpu = policy.base == "cuda" and policy.format != "fp32" and device.type == "cpu"
    return GpuProducts() if stands_for_gpu else contextlib.nullcontext()  # type: ignore[no-untyped-call]


def _widened(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in _HALVES else tensor
