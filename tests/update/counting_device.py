"""A device that is none: tensors that say ``cuda:0``, computed on the CPU, with a count of waits.

It knows as much of CUDA as a step of an optimizer needs: operations run on the wrapped CPU tensors
and are counted; what makes the host wait on CUDA is counted as a wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = torch.device("cuda", 0)
# What launches nothing: views and memory without contents.
_FREE = {
    "_reshape_alias", "alias", "as_strided", "detach", "empty", "empty_like", "empty_strided",
    "expand", "select", "slice", "split", "t", "transpose", "unbind", "unsqueeze", "view",
    "view_as_real", "view_as_complex",
}  # fmt: skip
_WAITS = {"_local_scalar_dense", "equal", "is_nonzero", "masked_select", "nonzero"}


class Counts:
    """What happened on the device.

    Attributes:
        waits: Names of the operations that the host waited for.
        ops: Operations by name.
        kernels: Keyword arguments of each fused optimizer kernel.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.waits: list[str] = []
        self.ops: Counter[str] = Counter()
        self.kernels: list[Mapping[str, Any]] = []


_counts = Counts()


class DeviceTensor(Tensor):
    """A tensor that says it is on the device; `inner` holds its values."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> DeviceTensor:
        made: DeviceTensor = Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device="meta",
        )
        made.inner = inner
        return made

    device = property(lambda self: DEVICE)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)
    is_meta = property(lambda self: False)
    __torch_function__ = torch._C._disabled_torch_function_impl

    def tolist(self) -> Any:
        _counts.waits.append("tolist")
        return self.inner.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    name = func._schema.name.split("::")[1]
    pinned = kwargs.pop("pin_memory", None)
    leaves = pytree.tree_leaves((args, kwargs))
    on_device = any(isinstance(leaf, DeviceTensor) for leaf in leaves)
    target = kwargs.get("device")
    goes_there = target is not None and torch.device(target).type in ("cuda", "meta")
    if not on_device and not goes_there:
        made = func(*args, **kwargs)
        if pinned:
            made._is_pinned_here = True
        return made
    if goes_there:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    if name == "_to_copy":
        stays = isinstance(args[0], DeviceTensor) and (goes_there or target is None)
        if stays and goes_there and kwargs.get("dtype") in (None, args[0].dtype):
            return args[0]
        if not stays:
            _counts.waits.append("copy between host and device")
        leaves_device = target is not None and not goes_there
        _counts.ops[name] += 1
        copied = func(_inner(args[0]), **kwargs).clone()
        return copied if leaves_device else DeviceTensor(copied)
    _count(name, args, kwargs)
    result = func(*pytree.tree_map(_inner, args), **pytree.tree_map(_inner, kwargs))
    if "out" in kwargs:
        return kwargs["out"]
    alias = func._schema.arguments[0].alias_info if func._schema.arguments else None
    if alias is not None and alias.is_write and isinstance(args[0], Tensor):
        return args[0]
    return pytree.tree_map(lambda x: DeviceTensor(x) if isinstance(x, Tensor) else x, result)


def _count(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    if name == "copy_" and isinstance(args[0], DeviceTensor) != isinstance(args[1], DeviceTensor):
        if not any(getattr(t, "_is_pinned_here", False) for t in args[:2]):
            _counts.waits.append("copy between host and device")
    elif name in _WAITS:
        _counts.waits.append(name)
    if name.startswith("_fused_"):
        _counts.kernels.append(kwargs)
        for flag in ("grad_scale", "found_inf"):
            value = kwargs.get(flag)
            assert value is None or (value.dtype is torch.float32 and value.dim() == 0), flag
    if name not in _FREE:
        _counts.ops[name] += 1


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, DeviceTensor) else value


class _Event:
    def __init__(self, device: object = None) -> None: ...

    def record(self, stream: object = None) -> None: ...

    def synchronize(self) -> None:
        _counts.waits.append("event")


@contextmanager
def counting_device() -> Iterator[Counts]:
    """Work with `DeviceTensor`; yields the counts."""
    group = torch._C._group_tensors_by_device_and_dtype

    def grouped(lists: Any, with_indices: bool = False) -> Any:
        found = group(lists, with_indices)
        return {(DEVICE if d and d.type == "meta" else d, t): v for (d, t), v in found.items()}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch._C, "_group_tensors_by_device_and_dtype", grouped)
        patch.setattr(torch.cuda, "_lazy_init", lambda: None)
        patch.setattr(torch, "Event", _Event)
        patch.setattr(torch.accelerator, "current_stream", lambda device=None: None)
        _counts.clear()
        with _Mode():
            yield _counts


def on_device(value: Tensor) -> Tensor:
    """A copy on the device; a parameter stays a leaf that wants a gradient."""
    made = DeviceTensor(value.detach().clone())
    return made.requires_grad_(value.requires_grad)
