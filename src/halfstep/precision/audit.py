"""`Policy.audit`: what a policy cannot reach in a model."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from halfstep.precision.actions import actions_for
from halfstep.precision.op_lists import op_list
from halfstep.precision.patterns import modules_named
from halfstep.precision.source_line import SourceLine, caller, line_of_class
from halfstep.precision.torch_internals import torch_internal

if TYPE_CHECKING:
    from halfstep.precision.policy import Policy

Kind = Literal["custom_op", "function", "half_parameter", "half_input", "island_not_called"]

_has_kernel = torch_internal("_dispatch_has_kernel_for_dispatch_key")
_HALF = (torch.float16, torch.bfloat16)
_TORCHS_OWN = (
    "aten", "prim", "prims", "profiler", "c10d", "_c10d_functional", "quantized", "onednn",
    "quantized_decomposed", "mkldnn", "mkl", "xnnpack", "inductor", "higher_order", "rngprims",
    "debugprims", "static_runtime",
)  # fmt: skip
# What ops of the low-precision and promote lists arrive at below autocast.
_INSIDE_LISTED = (
    "mm", "addmm", "bmm", "baddbmm", "addbmm", "addmv", "mv", "addr", "dot", "vdot", "convolution",
    "_convolution", "mkldnn_", "_mkldnn", "cudnn_", "_cudnn", "miopen_", "_scaled_dot_product",
    "_prelu", "_thnn_fused", "linear",
)  # fmt: skip
_ONLY_MOVE = (
    "_to_copy", "clone", "copy_", "detach", "empty", "zeros", "ones", "full", "new_", "fill_",
    "zero_", "_unsafe_view", "_reshape_alias", "lift_fresh", "_local_scalar_dense", "scalar_tensor",
)  # fmt: skip


@dataclass(frozen=True)
class AuditEntry:
    """One thing that a policy cannot reach.

    Attributes:
        kind: ``"custom_op"``, ``"function"``, ``"half_parameter"``, ``"half_input"`` or
            ``"island_not_called"``.
        name: Of the op, class, parameter, input or module.
        message: What is the matter.
        remedy: What to do.
        path, line: Where the op was called, the class is written, or the audit was asked for.
        count: How often it was met.
    """

    kind: Kind
    name: str
    message: str
    remedy: str
    path: str
    line: int
    count: int = 1

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message} {self.remedy}"


@dataclass(frozen=True)
class Audit:
    """What `Policy.audit` found.

    Attributes:
        entries: What should be looked at; empty for a model that is in order.
        ops_without_rule: torch's own ops that ran in 16 bits because no list names them, with how
            often. This is normal: torch holds them for safe, or for no safer in FP32.
    """

    entries: tuple[AuditEntry, ...]
    ops_without_rule: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return "\n".join(map(str, self.entries)) or "nothing that the policy cannot reach"


def audit(policy: Policy, model: nn.Module, batch: Any) -> Audit:
    """See `Policy.audit`."""
    asked = caller()
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    entries = [*_half_parameters(model, asked), *_half_inputs(batch, asked)]
    policy.attach(model)
    args, kwargs = _arguments(batch)
    actions = actions_for(policy.base, policy.ops, device.type)
    ops = _WatchOps(device.type, actions)
    with _put_back(model, device), _calls_of(model, policy.modules) as called:
        with torch.enable_grad(), policy.autocast(device.type), ops:
            output = model(*args, **kwargs)
        entries += ops.entries()
        entries += _functions(output, device.type)
        entries += _islands_not_called(model, policy, called)
    return Audit(tuple(entries), dict(ops.without_rule.most_common()))


class _WatchOps(TorchDispatchMode):
    """Sees every op below autocast, with the dtype it really runs in."""

    def __init__(self, device_type: str, actions: Mapping[str, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._key = f"Autocast{device_type.upper()}"
        self._actions = actions
        listed = {*op_list("cpu"), *op_list("cuda")} | set(actions)
        self._listed = {name.partition(".")[0] for name in listed}
        self.without_rule: Counter[str] = Counter()
        self._custom: dict[tuple[str, SourceLine], int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        leaves = pytree.tree_leaves((args, kwargs))
        dtypes = {t.dtype for t in leaves if isinstance(t, Tensor) and t.is_floating_point()}
        if dtypes:
            self._note(func, dtypes)
        return func(*args, **kwargs)

    def _note(self, func: Any, dtypes: set[torch.dtype]) -> None:
        name = func.name()
        if func.namespace not in _TORCHS_OWN:
            has_rule = _has_kernel(name, self._key)
            if not has_rule and name not in self._actions:
                place = (name, caller())
                self._custom[place] = self._custom.get(place, 0) + 1
            return
        bare = name.partition("::")[2].partition(".")[0]
        listed = bare in self._listed or bare.startswith(_INSIDE_LISTED)
        computes = not func.is_view and not bare.startswith(_ONLY_MOVE)
        if dtypes & set(_HALF) and computes and not listed:
            self.without_rule[bare] += 1

    def entries(self) -> Iterator[AuditEntry]:
        for (name, place), count in self._custom.items():
            yield AuditEntry(
                "custom_op",
                name,
                f"custom op {name} has no autocast rule: it gets whatever dtypes arrive.",
                f"Register one (torch.library.register_autocast), or put {name!r} into the"
                " policy's ops.",
                place.path,
                place.line,
                count,
            )


def _functions(output: Any, device_type: str) -> Iterator[AuditEntry]:
    """`autograd.Function` classes in the graph of the output that do not handle autocast."""
    todo = [t.grad_fn for t in pytree.tree_leaves(output) if isinstance(t, Tensor)]
    seen: set[Any] = set()
    found: Counter[type] = Counter()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        todo += [following for following, _ in node.next_functions]
        if isinstance(node, BackwardCFunction):
            found[type(node)._forward_cls] += 1
    for function, count in found.items():
        missing = [
            decorator
            for decorator, method in (("custom_fwd", "forward"), ("custom_bwd", "backward"))
            if not _is_decorated(getattr(function, method, None))
        ]
        if missing and not function.__module__.startswith("torch."):
            place = line_of_class(function)
            yield AuditEntry(
                "function",
                function.__qualname__,
                f"autograd.Function {function.__qualname__} has no {' and no '.join(missing)}: its"
                " forward runs under autocast and its backward does not, in other dtypes.",
                f"Decorate with torch.amp.custom_fwd(device_type={device_type!r}) and custom_bwd;"
                " cast_inputs=torch.float32 keeps it in FP32.",
                place.path,
                place.line,
                count,
            )


def _is_decorated(method: Any) -> bool:
    code = getattr(method, "__code__", None)
    return code is not None and code.co_filename == torch.amp.autocast_mode.__file__


def _half_parameters(model: nn.Module, asked: SourceLine) -> Iterator[AuditEntry]:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.dtype not in _HALF:
            continue
        what = "parameter" if isinstance(tensor, nn.Parameter) else "buffer"
        place = _owner_line(model, name) or asked
        yield AuditEntry(
            "half_parameter",
            name,
            f"{what} {name!r} is {_short(tensor)}: it was halved by hand, and autocast only casts"
            " copies.",
            "Keep it in FP32 (.float(), no .half() or .to(dtype)); small updates are lost in it.",
            place.path,
            place.line,
        )


def _owner_line(model: nn.Module, name: str) -> SourceLine | None:
    """Where the innermost module class of the user around a parameter is written."""
    module, found = model, None
    for part in ("", *name.split(".")[:-1]):
        module = getattr(module, part) if part else module
        if not type(module).__module__.startswith("torch."):
            found = type(module)
    return line_of_class(found) if found is not None else None


def _half_inputs(batch: Any, asked: SourceLine) -> Iterator[AuditEntry]:
    for path, leaf in pytree.tree_flatten_with_path(batch)[0]:
        if isinstance(leaf, Tensor) and leaf.dtype in _HALF:
            name = f"input{pytree.keystr(path)}"
            yield AuditEntry(
                "half_input",
                name,
                f"{name} is {_short(leaf)}: it was halved before autocast could choose.",
                "Hand it over in FP32; what it lost in rounding is lost in FP32 ops too.",
                asked.path,
                asked.line,
            )


def _islands_not_called(model: nn.Module, policy: Policy, called: set[str]) -> Iterator[AuditEntry]:
    for name, module in modules_named(model, policy.modules).items():
        if name not in called:
            place = line_of_class(type(module))
            yield AuditEntry(
                "island_not_called",
                name,
                f"island {name!r} was not called: its parent uses its weights or calls"
                " its forward(), past the hooks.",
                "Make the parent the island.",
                place.path,
                place.line,
            )


@contextlib.contextmanager
def _calls_of(model: nn.Module, patterns: Mapping[str, str]) -> Iterator[set[str]]:
    called: set[str] = set()
    handles = [
        module.register_forward_pre_hook(lambda *_, name=name: called.add(name))
        for name, module in modules_named(model, patterns).items()
    ]
    try:
        yield called
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def _put_back(model: nn.Module, device: torch.device) -> Iterator[None]:
    buffers = [(b, b.clone()) for b in model.buffers()]
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)


def _arguments(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(batch, Mapping):
        return (), dict(batch)
    return (tuple(batch), {}) if isinstance(batch, tuple) else ((batch,), {})


def _short(tensor: Tensor) -> str:
    return "FP16" if tensor.dtype is torch.float16 else "BF16"
