"""Which category an op has, seen in what torch's own autocast does to the arguments of a call.

Knows no list: a call of every op with made-up arguments, which may well fail below autocast, when
the casts have been seen already. Fake tensors are on CUDA without a CUDA device.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

HALF, FULL = torch.float16, torch.float32
PLAIN = {"int": 1, "SymInt": 1, "float": 1.0, "bool": False, "number": 1, "str": "fro"}


class _FirstOp(Exception):  # noqa: N818
    pass


class _Casts(TorchDispatchMode):
    """The casts before the first op, and the dtype which that op is told to compute in."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default:
            self.dtypes.add(kwargs["dtype"])
            return func(*args, **kwargs)
        if func.namespace == "prim":  # a fake tensor is asked for its device
            return func(*args, **kwargs)
        given = {**dict(zip((a.name for a in func._schema.arguments), args)), **kwargs}  # noqa: B905
        if given.get("dtype") is not None:
            self.dtypes.add(given["dtype"])
        if given.get("half_to_float"):
            self.dtypes.add(FULL)
        raise _FirstOp


@contextlib.contextmanager
def _autocast(device: str) -> Iterator[None]:
    before = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    torch.set_autocast_enabled(device, True)  # torch.autocast refuses CUDA without a device
    torch.set_autocast_dtype(device, HALF)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, before[0])
        torch.set_autocast_dtype(device, before[1])


def _argument(kind: str, tensors: Iterator[Tensor]) -> Any:
    if kind == "Tensor":
        return next(tensors)
    if kind in ("List[Tensor]", "List[Optional[Tensor]]"):
        return [next(tensors), next(tensors)]
    if kind.startswith("List["):
        return [0, 1]  # dimensions, which must differ
    return None if kind.startswith("Optional[") else PLAIN[kind]


def _casts(op: Any, device: str, *dtypes: torch.dtype) -> set[torch.dtype]:
    """Casts in a call with tensors of these dtypes, the last for all that follow."""
    given = itertools.chain(dtypes, itertools.repeat(dtypes[-1]))
    tensors = (torch.zeros(2, 2, dtype=dtype, device=device) for dtype in given)
    with FakeTensorMode():
        made = [(a, _argument(str(a.type), tensors)) for a in op._schema.arguments]
        args = [value for a, value in made if not a.kwarg_only]
        kwargs = {a.name: value for a, value in made if a.kwarg_only}
        with _autocast(device), _Casts() as seen:
            try:
                op(*args, **kwargs)
            except _FirstOp:
                pass
            except (RuntimeError, IndexError) as error:
                if "unsafe to autocast" in str(error):
                    raise
    return seen.dtypes


def observed_category(op: Any, device: str) -> str:
    """One of halfstep's categories, or ``"inputs"``."""
    try:
        if HALF in _casts(op, device, FULL):
            return "low"
    except RuntimeError:
        return "refused"
    if FULL in _casts(op, device, HALF):
        return "fp32"
    return "promote" if FULL in _casts(op, device, HALF, FULL) else "inputs"
