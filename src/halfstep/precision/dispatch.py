"""Kernels on torch's autocast keys, and the thread's switch for them.

A kernel is registered at most once per op and device, when the first policy that needs it is used,
and lasts as long as the process: removing one while another thread runs its op crashes. What it
does depends on the `Frame` in thread-local storage. Without one, or without a rule for the op, it
hands the call on exactly as torch would have: to torch's own autocast kernel, or below autocast.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload
from torch.library import Library, get_kernel

from halfstep.precision.compiler import not_compiled
from halfstep.precision.op_lists import LISTED_DEVICES, op_list
from halfstep.precision.op_names import find_overload
from halfstep.precision.rules import Rule, caller_of, has_numbers, make_rule, number_positions
from halfstep.precision.torch_internals import torch_internal

_SLOT = "halfstep.precision"

# torch's thread-local storage for Python objects: unlike threading.local, autograd hands it on to
# the threads in which it runs backward, where checkpoints recompute their forward.
_is_set = torch_internal("_is_key_in_tls")
_get = torch_internal("_get_obj_in_tls")
_put = torch_internal("_stash_obj_in_tls")
_remove = getattr(torch._C, "_remove_obj_from_tls", None)  # not in torch 2.10


def _forgets_to_count() -> bool:
    """Whether storing an object leaves its reference count alone, as torch 2.10 does."""
    probe = object()
    before = sys.getrefcount(probe)
    _put(_SLOT + ".probe", probe)
    forgets = sys.getrefcount(probe) == before
    if forgets:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(probe))
    return forgets


_COUNT_FIRST = _forgets_to_count()


def _stash(frame: Frame | None) -> None:
    if _COUNT_FIRST:  # it is uncounted when something else is stored, and freed under our feet
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(frame))
    _put(_SLOT, frame)


class Frame(NamedTuple):
    """What is active in a thread.

    Attributes:
        rules: Device type to op (with overload) to rule.
        islands: The module patterns of the policy; islands with these patterns are active.
    """

    rules: Mapping[str, Mapping[str, Rule]]
    islands: tuple[str, ...]


def active_frame() -> Frame | None:
    """The frame of this thread, ``None`` outside of every policy."""
    return _get(_SLOT) if _is_set(_SLOT) else None


def set_active_frame(frame: Frame | None) -> None:
    """Switch this thread over."""
    if frame is not None:
        _stash(frame)
    elif _is_set(_SLOT):
        _remove(_SLOT) if _remove else _stash(None)


def compile_rules(actions: Mapping[str, str], device_type: str) -> Mapping[str, Rule]:
    """Rules by op, with the kernels that look at them in place.

    Args:
        actions: Op with overload to what `make_rule` takes, or ``"unlisted"`` for none: ops inside
            of it may have one.
        device_type: Whose autocast.
    """
    ops = {name: op for name in actions if (op := find_overload(name)) is not None}
    _ensure_kernels(ops, device_type)
    return {
        name: no_rule if actions[name] == "unlisted" else make_rule(op, actions[name], device_type)
        for name, op in ops.items()
    }


def no_rule(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Stands for an op that is not on the list; kernels go below autocast instead."""
    raise AssertionError("never called")


_lock = threading.Lock()
_registered: set[tuple[str, str]] = set()
_libraries: dict[str, Library] = {}


def _ensure_kernels(ops: Mapping[str, OpOverload], device_type: str) -> None:
    with _lock:
        missing = {n: op for n, op in ops.items() if (device_type, n) not in _registered}
        if not missing:
            return
        for listed in LISTED_DEVICES:
            op_list(listed)  # read before our kernels are among the registered ones
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "Overriding a previously registered kernel"
            for name, op in missing.items():
                _register(name, op, device_type)


def _register(name: str, op: OpOverload, device_type: str) -> None:
    namespace = op.namespace
    if namespace not in _libraries:
        _libraries[namespace] = Library(namespace, "IMPL")  # type: ignore[no-untyped-call]
    key = torch_internal(f"DispatchKey.Autocast{device_type.upper()}")
    kernel = _kernel(name, op, key, device_type)
    _libraries[namespace].impl(op, kernel, key.name, with_keyset=True)  # type: ignore[no-untyped-call]
    _registered.add((device_type, name))


def _kernel(name: str, op: OpOverload, key: Any, device_type: str) -> Callable[..., Any]:
    this_key = torch_internal("DispatchKeySet")(key)
    below_autocast = torch_internal("_dispatch_keyset_full_after")(key)
    without_autocast = torch_internal("_ExcludeDispatchKeyGuard")
    numbers_at = number_positions(op)
    call = caller_of(op)

    def below(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        if numbers_at and has_numbers(args, numbers_at):
            with without_autocast(this_key):
                return call(args, kwargs)
        # By keyset, not by excluding the key: ops inside of a composite must still autocast.
        return op.redispatch(keyset & below_autocast, *args, **kwargs)

    has_stock = torch_internal("_dispatch_has_kernel_for_dispatch_key")(op._name, key.name)
    stock = get_kernel(op, key).call_boxed if has_stock else below

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_set(_SLOT) and (frame := _get(_SLOT)) is not None:
            rules = frame.rules.get(device_type)
            if rules is not None and (rule := rules.get(name)) is not None:
                if rule is no_rule:
                    return below(keyset, *args, **kwargs)
                with without_autocast(this_key):
                    return rule(args, kwargs)
        return stock(keyset, *args, **kwargs)

    not_compiled(kernel)
    return kernel
