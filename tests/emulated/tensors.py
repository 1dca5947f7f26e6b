"""`DeviceTensor`, and how an operation on it reaches the CPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from emulated.clock import CLOCK
from emulated.demands import check_demands

DEVICE = torch.device("cuda", 0)
# autocast on "cuda" looks at these tensors although C++ takes them for "meta"
_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)
# What launches nothing: views and memory without contents.
_FREE = {
    "_reshape_alias", "_unsafe_view", "alias", "as_strided", "detach", "diagonal", "empty",
    "empty_like", "empty_permuted", "empty_strided", "expand", "is_pinned", "lift_fresh",
    "new_empty", "new_empty_strided", "permute", "select", "slice", "split", "split_with_sizes",
    "squeeze", "t", "transpose", "unbind", "unfold", "unsqueeze", "view", "view_as_complex",
    "view_as_real",
}  # fmt: skip
# What the host waits for on CUDA, because it needs a number or a shape.
_WAITS = {
    "_coalesce", "_local_scalar_dense", "_unique2", "bincount", "equal", "is_nonzero",
    "masked_select", "nonzero", "unique_consecutive", "unique_dim",
}  # fmt: skip


class DeviceTensor(Tensor):
    """A tensor that says it is on the device; `inner` holds its values.

    Attributes:
        has_float64: Whether the device has that type, which Apple's does not.
    """

    inner: Tensor
    has_float64 = True

    @staticmethod
    def __new__(cls, inner: Tensor) -> DeviceTensor:
        if inner.dtype is torch.float64 and not cls.has_float64:
            raise TypeError("Cannot convert a tensor to float64 dtype as the device has none.")
        made: DeviceTensor = Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device="meta",
            _extra_dispatch_keys=_KEYS,
        )
        made.inner = inner
        return made

    device = property(lambda self: DEVICE)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)
    is_meta = property(lambda self: False)
    __torch_function__ = torch._C._disabled_torch_function_impl

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, value: DeviceTensor) -> None:
        Tensor.data.__set__(self, value)  # type: ignore[attr-defined]
        self.inner = value.inner

    def get_device(self) -> int:
        return 0

    def tolist(self) -> Any:
        CLOCK.wait("tolist")
        return self.inner.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError("can't convert cuda:0 device type tensor to numpy.")
        return self.cpu().numpy()

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def untyped_storage(self) -> Any:
        return self.inner.untyped_storage()

    def __repr__(self, **options: Any) -> str:  # type: ignore[override]
        return f"DeviceTensor({self.inner!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            made = self.detach().clone().requires_grad_(self.requires_grad)
            if getattr(self, "_is_param", False):
                made._is_param = True  # type: ignore[attr-defined]
            memo[id(self)] = made
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        # a file holds what torch.load(map_location="cpu") makes of it
        CLOCK.wait("copy to a file")
        return self.inner.detach().__reduce_ex__(protocol)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


class DispatchMode(TorchDispatchMode):
    """Sees what makes tensors out of numbers as well."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


def on_device(value: Tensor) -> Tensor:
    """A copy on the device that no wait is counted for; a leaf keeps wanting its gradient."""
    made = DeviceTensor(value.detach().clone())
    return made.requires_grad_(value.requires_grad)


def inner(value: Any) -> Any:
    """The values of a tensor on the device, without a wait; anything else as it is."""
    return value.inner if isinstance(value, DeviceTensor) else value


def run(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """One operation, on the CPU."""
    name = func._schema.name.split("::")[1]
    result = _run(func, name, args, kwargs)
    if name.startswith("_foreach_") and name.endswith("_"):
        increment_version(args[0])  # CUDA's kernels do, and the CPU's where no mode is on
    return result


def _run(func: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    target = kwargs.get("device")
    target = None if target is None else torch.device(target)
    goes_there = target is not None and target.type in ("cuda", "meta")
    leaves = list(_tensors_in((*args, *kwargs.values())))
    is_there = [isinstance(leaf, DeviceTensor) for leaf in leaves]
    if not any(is_there) and not goes_there:
        return _on_the_host(func, name, args, kwargs)
    if kwargs.pop("pin_memory", False):
        raise RuntimeError("Only dense CPU tensors can be pinned")
    if name == "_to_copy":
        return _moved(func, args[0], kwargs, target)
    if name == "copy_":
        return _copied(*args, **kwargs)
    _refuse_mixed(func, name, leaves)
    _wait_where_cuda_does(func, name, args)
    check_demands(name, args, kwargs)
    if name.startswith("_fused_"):
        CLOCK.counts.kernels.append(kwargs)
    if name not in _FREE:
        CLOCK.launch(name)
    if goes_there:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    return _computed(func, name, args, kwargs)


def _computed(func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    values = tuple(map(_inside, args))
    options = {name: _inside(value) for name, value in kwargs.items()}
    if name in ("_softmax", "_log_softmax") and values[2]:
        values = (values[0].float(), values[1], False)  # CUDA converts inside of the kernel
    if torch.Tag.nondeterministic_seeded in func.tags:
        result = DEVICE_RANDOM.draw(lambda: func(*values, **options))
    else:
        result = func(*values, **options)
    if "out" in kwargs:
        return kwargs["out"]
    alias = func._schema.arguments[0].alias_info if func._schema.arguments else None
    if alias is not None and alias.is_write and isinstance(args[0], Tensor):
        return args[0]
    if isinstance(result, Tensor):
        return DeviceTensor(result)
    made: dict[int, DeviceTensor] = {}
    return pytree.tree_map(
        lambda x: made.setdefault(id(x), DeviceTensor(x)) if isinstance(x, Tensor) else x, result
    )


def _tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """Those of an operation's arguments: tensors, and lists of them."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors_in(value)


def _inside(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_inside(each) for each in value]
    return inner(value)


def _on_the_host(func: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    if name == "is_pinned":
        return _is_pinned(args[0])
    if name == "_local_scalar_dense" and not isinstance(args[0], Tensor):
        return args[0]  # a number that autograd has saved: torch hands it over unwrapped
    pinned = kwargs.pop("pin_memory", False)
    made = args[0].clone() if name == "_pin_memory" else func(*args, **kwargs)
    if pinned or name == "_pin_memory":
        made._is_pinned_here = True
    return made


def _is_pinned(value: Tensor) -> bool:
    return any(getattr(each, "_is_pinned_here", False) for each in (value, value._base))


def _moved(func: Any, source: Tensor, kwargs: dict[str, Any], target: Any) -> Tensor:
    """``tensor.to(...)``: to another dtype, or between host and device."""
    was_there = isinstance(source, DeviceTensor)
    will_be_there = was_there if target is None else target.type in ("cuda", "meta")
    does_not_block = kwargs.pop("non_blocking", False)
    wanted = kwargs.get("dtype") or source.dtype
    stays = was_there and target is not None and will_be_there and wanted == source.dtype
    if stays and _has_layout(source, kwargs.get("memory_format")):
        return source
    options = {**kwargs, "device": torch.device("cpu")} if "device" in kwargs else kwargs
    made: Tensor = func(inner(source), **options)
    if was_there != will_be_there:
        _cross(does_not_block and not was_there and _is_pinned(source), does_not_block)
    else:
        CLOCK.launch("_to_copy")
    return DeviceTensor(made) if will_be_there else made


def _has_layout(value: DeviceTensor, memory_format: torch.memory_format | None) -> bool:
    return memory_format in (None, torch.preserve_format) or value.inner.is_contiguous(
        memory_format=memory_format
    )


def _copied(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """``target.copy_(source)``; into pinned memory the values come later."""
    CLOCK.launch("copy_")
    is_there = isinstance(target, DeviceTensor)
    if is_there == isinstance(source, DeviceTensor):
        inner(target).copy_(inner(source))
        return target
    is_free = non_blocking and _is_pinned(source if is_there else target)
    if is_there or not is_free:
        _cross(is_free, non_blocking)
        inner(target).copy_(inner(source))
        return target
    arriving = inner(source).clone()
    if target.is_floating_point():
        target.fill_(float("nan"))  # what is read too early must not look right
    CLOCK.queue(lambda: target.copy_(arriving))
    return target


def _cross(is_free: bool, does_not_block: bool) -> None:
    """Between host and device: only pinned memory spares the host the wait."""
    if not is_free:
        CLOCK.wait("copy between host and device", seen_by_debug_mode=not does_not_block)


def _refuse_mixed(func: Any, name: str, leaves: Sequence[Tensor]) -> None:
    if name.startswith("_fused_"):
        return  # the demands of each argument are checked one by one
    takes_numbers = not name.startswith(("_amp_", "stack", "cat"))
    for leaf in leaves:
        if not isinstance(leaf, DeviceTensor) and not (takes_numbers and leaf.dim() == 0):
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices,"
                f" cuda:0 and cpu! (in {func})"
            )


def _wait_where_cuda_does(func: Any, name: str, args: Sequence[Any]) -> None:
    by_mask = name in ("index", "index_put", "index_put_") and any(
        index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
    )
    if name in _WAITS or by_mask or str(func) == "aten.repeat_interleave.Tensor":
        CLOCK.wait(name)


class DeviceRandom:
    """The device's own generator; `draw` runs a function with it."""

    def __init__(self) -> None:
        self.state = torch.Generator().manual_seed(0).get_state()

    def seed(self, seed: int) -> None:
        self.state = torch.Generator().manual_seed(seed).get_state()

    def draw(self, function: Any) -> Any:
        of_the_host = torch.get_rng_state()
        torch.set_rng_state(self.state)
        try:
            return function()
        finally:
            self.state = torch.get_rng_state()
            torch.set_rng_state(of_the_host)


DEVICE_RANDOM = DeviceRandom()
