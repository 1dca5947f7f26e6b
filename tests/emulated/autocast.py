"""CUDA's autocast on emulated tensors.

torch's own kernels for the key "AutocastCUDA" are there in a build for the CPU, but they ask C++
for the device of a tensor and cast nothing that is on "meta". These do what they do by torch's
header, and call torch's for all other tensors. The weights' casts are cached until autocast is left
or ``torch.clear_autocast_cache()`` is called. What they do not show: that the list in the header is
the one that CUDA obeys; `tests/gpu/test_policy_cuda.py` shows it on a device.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from emulated.tensors import DeviceTensor
from halfstep.precision import dispatch
from halfstep.precision.op_lists import op_list, registered_ops

_KEY = torch._C.DispatchKey.AutocastCUDA
_KEYS = torch._C.DispatchKeySet(_KEY)
_LOW = (torch.float16, torch.bfloat16)
_library: torch.library.Library | None = None
_kernels: dict[str, Callable[..., Any]] = {}
_cache: dict[int, tuple[Tensor, Tensor]] = {}


def register_kernels() -> None:
    """Once per process, and before a policy registers its own on top of these."""
    global _library
    if _library is not None:
        return
    _library = torch.library.Library("aten", "IMPL")
    rules: dict[str, Callable[..., Any]] = {
        "low": _in_low, "fp32": _in_fp32, "promote": _in_widest, "refused": _refuse
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says once that a kernel was overridden
        for name in registered_ops("cuda"):
            packet, _, overload = name.partition(".")
            op = getattr(getattr(torch.ops.aten, packet), overload or "default")
            rule = rules.get(op_list("cuda")[name])
            if rule is not None:
                _kernels[op._name] = kernel = _kernel(name, op, rule)
                _library.impl(name, kernel, "AutocastCUDA", with_keyset=True)
    # torch calls one kernel of Python per operator, whichever was registered last
    get_kernel = dispatch.get_kernel
    dispatch.get_kernel = lambda op, key: (  # type: ignore[attr-defined]
        SimpleNamespace(call_boxed=_kernels[op._name])
        if key == _KEY and op._name in _kernels
        else get_kernel(op, key)
    )


def clear_cache() -> None:
    _cache.clear()


def _kernel(name: str, op: Any, rule: Callable[..., Any]) -> Callable[..., Any]:
    stock = torch.library.get_kernel(op, _KEY).call_boxed

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        if not any(isinstance(x, DeviceTensor) for x in pytree.tree_leaves((args, kwargs))):
            return stock(keyset, *args, **kwargs)
        args, kwargs = rule(name, args, kwargs)
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            return op(*args, **kwargs)

    return kernel


def _in_low(name: str, args: Any, kwargs: Any) -> Any:
    dtype = torch.get_autocast_dtype("cuda")
    return pytree.tree_map(lambda x: _cast(x, dtype), (args, kwargs))


def _in_fp32(name: str, args: Any, kwargs: Any) -> Any:
    if kwargs.get("dtype") is not None:
        return args, kwargs  # a given dtype is honoured
    return pytree.tree_map(lambda x: _cast(x, torch.float32), (args, kwargs))


def _in_widest(name: str, args: Any, kwargs: Any) -> Any:
    dtypes = {x.dtype for x in pytree.tree_leaves((args, kwargs)) if _is_eligible(x)}
    dtype = torch.float32 if torch.float32 in dtypes else torch.get_autocast_dtype("cuda")
    return pytree.tree_map(lambda x: _cast(x, dtype), (args, kwargs))


def _refuse(name: str, args: Any, kwargs: Any) -> Any:
    raise RuntimeError(f"{name} is unsafe to autocast")


def _is_eligible(value: object) -> bool:
    return (
        isinstance(value, DeviceTensor)
        and value.is_floating_point()
        and value.dtype is not torch.float64
    )


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if not _is_eligible(value) or value.dtype is dtype:
        return value
    is_weight = value.is_leaf and value.requires_grad and value.dtype is torch.float32
    if not (is_weight and dtype in _LOW and torch.is_autocast_cache_enabled()):
        return value.to(dtype)
    if id(value) not in _cache:
        _cache[id(value)] = value, value.to(dtype)
    return _cache[id(value)][1]
