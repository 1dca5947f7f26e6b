"""``with fp32():``, the block form of an island, and `fp32` itself."""

from __future__ import annotations

import contextlib
from typing import Any, TypeVar, overload

from torch import nn
from torch.overrides import TorchFunctionMode

from halfstep.precision.cast_tree import to_fp32
from halfstep.precision.compiler import not_compiled
from halfstep.precision.islands import (
    Island,
    check_island,
    make_island,
    switch_autocast_off,
    switch_autocast_on,
)

Module = TypeVar("Module", bound=nn.Module)

# Functions whose inputs stay as they are: they change their argument, hand out a view of it, ask
# about it, or convert it as the user says. Everything else computes.
_IN_PLACE = """
    __iadd__ __isub__ __imul__ __itruediv__ __ifloordiv__ __imod__ __ipow__ __iand__ __ior__
    __ixor__ __ilshift__ __irshift__ __setitem__ __set__ __delete__
"""
_VIEWS = """
    __getitem__ __iter__ as_strided chunk detach diagonal dsplit expand expand_as flatten hsplit mH
    mT movedim moveaxis narrow permute ravel reshape reshape_as select split squeeze swapaxes
    swapdims t tensor_split transpose unbind unflatten unfold unsqueeze view view_as vsplit
"""
_QUESTIONS = """
    __array__ __bool__ __contains__ __dlpack__ __dlpack_device__ __format__ __get__ __hash__ __len__
    __reduce_ex__ __repr__ can_cast data_ptr device dim dtype element_size get_device is_complex
    is_contiguous is_floating_point is_inference is_pinned is_same_size is_set_to is_shared
    is_signed item ndimension nelement numel numpy result_type size storage storage_offset stride
    tolist untyped_storage
"""
_CONVERSIONS = """
    __deepcopy__ bfloat16 bool byte char clone contiguous cpu cuda double empty_like float half int
    long new_empty new_full new_ones new_tensor new_zeros pin_memory short to type type_as
"""
_AUTOGRAD = "backward grad register_hook register_post_accumulate_grad_hook retain_grad"
# Functions whose inputs stay as they are; everything else computes.
_LEFT_ALONE = frozenset((_IN_PLACE + _VIEWS + _QUESTIONS + _CONVERSIONS + _AUTOGRAD).split())


class _CastInputs(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name: str = getattr(func, "__name__", "")
        in_place = name.endswith("_") and not name.endswith("__")
        if in_place or name in _LEFT_ALONE or "out" in kwargs:
            return func(*args, **kwargs)
        return func(*to_fp32(args), **to_fp32(kwargs))


class Fp32Block(contextlib.ContextDecorator):
    """The block; may be entered again, and wrapped around a function."""

    def __init__(self) -> None:
        self._entered: list[tuple[list[str], _CastInputs]] = []

    def __enter__(self) -> None:
        mode = _CastInputs()
        mode.__enter__()  # type: ignore[no-untyped-call]
        self._entered.append((switch_autocast_off(), mode))

    def __exit__(self, *exception: Any) -> None:
        devices, mode = self._entered.pop()
        switch_autocast_on(devices)
        mode.__exit__(*exception)  # type: ignore[no-untyped-call]

    def _recreate_cm(self) -> Fp32Block:
        return Fp32Block()  # a decorated function may run in several threads


not_compiled(_CastInputs.__torch_function__, Fp32Block.__enter__, Fp32Block.__exit__)


@overload
def fp32() -> Fp32Block: ...
@overload
def fp32(module: Module) -> Module: ...


def fp32(module: Module | None = None) -> Module | Fp32Block:
    """Keep a module, or a block, in FP32 inside of autocast: an island.

    FP16 and BF16 tensors that go in are cast to FP32, autocast is off inside, and what comes out
    stays FP32. Switching autocast off alone would not do: a softmax of FP16 values stays FP16.

    Args:
        module: Made an island in place, for good. Its inputs may be nested in tuples, lists and
            dictionaries; integers, booleans, float64 and ``None`` pass unchanged. Without it, a
            context: inside ``with fp32():`` every function and method of torch gets FP32 inputs.

    Returns:
        The module, or the context (which is a decorator too).

    Raises:
        BadTypeError: Something else was given.
        BadValueError: The module has FP16 or BF16 weights.

    Example:
        >>> import torch, halfstep as hs
        >>> head = hs.fp32(torch.nn.Linear(4, 2))
        >>> with torch.autocast("cpu", dtype=torch.bfloat16):
        ...     hidden = torch.nn.functional.linear(torch.ones(1, 4), torch.ones(4, 4))
        ...     hidden.dtype, head(hidden).dtype
        (torch.bfloat16, torch.float32)
        >>> with hs.fp32():
        ...     torch.softmax(hidden, -1).dtype
        torch.float32
    """
    if module is None:
        return Fp32Block()
    make_island(check_island(module), Island())
    return module
