"""What a rule does to a call: cast the arguments as torch's own autocast kernels do.

All of them share torch's conditions: float64 and tensors of other devices are left alone, a
`dtype` that the caller gave is honoured, and inside of the op autocast is off, so that a composite
op in FP32 does not fall back to 16 bits within.
"""

from __future__ import annotations

import operator
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from halfstep.precision.torch_internals import torch_internal
from halfstep.records import RefusedOpError

_is_in_functorch = torch_internal("_functorch.is_functorch_wrapped_tensor")

Rule = Callable[[tuple[Any, ...], dict[str, Any]], Any]

_FIXED = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_UNTOUCHED = frozenset({torch.float64, torch.bool, torch.uint8, torch.int32, torch.int64})
_Kept = dict[tuple[int, torch.dtype, bool], tuple[weakref.ref[Tensor], int, Tensor]]


class Casts(threading.local):
    """Low-precision copies of weights, for one outermost policy context of a thread.

    torch keeps such a cache for its own kernels; ours need one of their own, so that a weight that
    is used twice is cast once and its gradient is summed as it is on CUDA. A changed weight is
    cast again.

    Attributes:
        kept: Identity, dtype and gradient mode to weak reference, version and copy; ``None``
            outside, and while backward recomputes.
    """

    kept: _Kept | None = None


casts = Casts()


def make_rule(op: OpOverload, action: str, device_type: str) -> Rule:
    """The function that runs `op` under a rule.

    Args:
        op: One overload.
        action: ``"low"``, ``"fp32"``, ``"fp16"``, ``"bf16"``, ``"promote"``, ``"refused"``, or
            ``"inputs"`` (no cast, not inside either). For ops that the device cannot compute in 16
            bits ``"emulated low"`` and ``"emulated inputs"``: rounded before and after, FP32
            between.
        device_type: Tensors of other devices are not cast.

    Returns:
        Called with autocast off, as torch's own kernels are, with the tuple of positional arguments
        and the dictionary of the others.
    """
    call = caller_of(op)
    is_here = operator.attrgetter(f"is_{device_type}")
    if action == "inputs":
        return call
    if action == "refused":
        return _refuse(op)
    if action == "promote":
        return _promoting(call, op, device_type, is_here)
    if action.startswith("emulated"):
        return _emulating(call, device_type, is_here, lowers=action == "emulated low")
    if action == "fp32" and (setting := _dtype_setting(op)):
        return _setting_dtype(call, *setting, is_here)
    if action == "low":
        get = torch.get_autocast_dtype
        return lambda args, kwargs: _cast_and_call(call, args, kwargs, get(device_type), is_here)
    dtype = _FIXED[action]
    return lambda args, kwargs: _cast_and_call(call, args, kwargs, dtype, is_here)


def caller_of(op: OpOverload) -> Rule:
    """`op` as a function of a tuple and a dictionary."""
    raw = op._op  # past OpOverload.__call__, which only calls it
    numbers_at = number_positions(op)
    if not numbers_at:
        return lambda args, kwargs: raw(*args, **kwargs)
    packet = op.overloadpacket

    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return (packet if has_numbers(args, numbers_at) else raw)(*args, **kwargs)

    return call


def number_positions(op: OpOverload) -> tuple[int, ...]:
    """Where the dispatcher may hand over a Python number although the op wants a tensor.

    ``x * 0.5`` arrives at ``mul.Tensor`` with a number that promotes as numbers do, and Python
    cannot make such a tensor: only the packet of all overloads takes the call.
    """
    overloads = op.overloadpacket.overloads()
    if not any("scalar" in name.lower() for name in overloads):
        return ()
    arguments = enumerate(op._schema.arguments)
    found = tuple(i for i, a in arguments if str(a.type) == "Tensor" and not a.kwarg_only)
    return found if len(found) > 1 else ()


def has_numbers(args: tuple[Any, ...], positions: tuple[int, ...]) -> bool:
    """Whether one of the arguments is a number in the place of a tensor."""
    return any(not isinstance(args[i], Tensor) for i in positions if i < len(args))


def _cast_and_call(
    call: Rule,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dtype: torch.dtype,
    is_here: Callable[[Any], bool],
) -> Any:
    args = tuple([_cast(value, dtype, is_here) for value in args])
    if kwargs:
        kwargs = {name: _cast(value, dtype, is_here) for name, value in kwargs.items()}
    return call(args, kwargs)


def _cast(value: Any, dtype: torch.dtype, is_here: Callable[[Any], bool]) -> Any:
    if isinstance(value, Tensor):
        if value.dtype is dtype or not _is_eligible(value, is_here):
            return value
        if casts.kept is not None and dtype is not torch.float32 and _is_weight(value):
            return _kept_cast(value, dtype, casts.kept)
        return value.to(dtype)
    if isinstance(value, (list, tuple)):
        return [_cast(item, dtype, is_here) for item in value]
    return value


def _is_eligible(value: Tensor, is_here: Callable[[Any], bool]) -> bool:
    found = value.dtype
    return found not in _UNTOUCHED and found.is_floating_point and is_here(value)


def _is_weight(value: Tensor) -> bool:
    return (
        value.dtype is torch.float32
        and value.requires_grad
        and value.is_leaf
        # a copy made inside of torch.func.grad must not outlive that level
        and not _is_in_functorch(value)
    )


def _kept_cast(weight: Tensor, dtype: torch.dtype, kept: _Kept) -> Tensor:
    key = (id(weight), dtype, torch.is_grad_enabled())
    if key in kept:
        reference, version, copy = kept[key]
        if reference() is weight and version == weight._version:
            return copy
    copy = weight.to(dtype)
    kept[key] = (weakref.ref(weight), weight._version, copy)
    return copy


def _dtype_setting(op: OpOverload) -> tuple[int, bool] | None:
    """Position of an optional `dtype`, and whether it is given by name only."""
    for position, argument in enumerate(op._schema.arguments):
        if argument.name == "dtype" and "Optional" in str(argument.type):
            return position, argument.kwarg_only
    return None


def _setting_dtype(
    call: Rule, position: int, by_name: bool, is_here: Callable[[Any], bool]
) -> Rule:
    """FP32, or the dtype that was given, which `cross_entropy` does for its `log_softmax`.

    In 16 bits that is FP32 rounded at the end, as CUDA's kernels compute it: a CPU's log_softmax
    rounds in between too, and is off by 50 % for a probability near 1.
    """

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = kwargs.get("dtype") if by_name or len(args) <= position else args[position]
        rounded = given in (torch.float16, torch.bfloat16)
        if (given is None or rounded) and _is_eligible(args[0], is_here):
            if by_name or len(args) <= position:
                kwargs = {**kwargs, "dtype": torch.float32}
            else:
                args = (*args[:position], torch.float32, *args[position + 1 :])
            result = call(args, kwargs)
            return result.to(given) if rounded else result
        return call(args, kwargs)

    return run


def _promoting(
    call: Rule, op: OpOverload, device_type: str, is_here: Callable[[Any], bool]
) -> Rule:
    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        low = torch.get_autocast_dtype(device_type)
        widest = low
        for value in (*args, *kwargs.values()):
            for item in value if isinstance(value, (list, tuple)) else (value,):
                if not isinstance(item, Tensor) or not _is_eligible(item, is_here):
                    continue
                if item.dtype is torch.float32:
                    widest = torch.float32
                elif item.dtype is not low and widest is low:
                    raise RefusedOpError(
                        f"{op} got a tensor of {item.dtype} under autocast in {low}, which CUDA"
                        " refuses: there is no widest of two 16-bit formats. Cast it by hand, to"
                        f" {low} or float32."
                    )
        return _cast_and_call(call, args, kwargs, widest, is_here)

    return run


def _refuse(op: OpOverload) -> Rule:
    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = op._schema.name.removeprefix("aten::")
        text = f"{name} is refused under CUDA's autocast policy, for FP32 inputs too"
        if name == "binary_cross_entropy":
            text += (
                ": its gradient may not fit into FP16. Use binary_cross_entropy_with_logits"
                " (nn.BCEWithLogitsLoss) on what goes into the sigmoid, which is safe"
            )
        raise RefusedOpError(f"{text}; or call it inside `with halfstep.fp32():`.")

    return run


def _emulating(call: Rule, device_type: str, is_here: Callable[[Any], bool], lowers: bool) -> Rule:
    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        dtype = torch.get_autocast_dtype(device_type) if lowers else args[0].dtype
        rounded = _cast(args, dtype, is_here) if lowers else args
        result = call(tuple(_cast(rounded, torch.float32, is_here)), kwargs)
        if isinstance(result, Tensor):
            return _cast(result, dtype, is_here)
        return tuple(_cast(result, dtype, is_here))

    return run
