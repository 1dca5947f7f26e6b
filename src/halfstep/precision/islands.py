"""FP32 islands: modules that run in FP32 inside of autocast."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from halfstep.precision.cast_tree import to_fp32
from halfstep.precision.compiler import (
    TRACES_AUTOCAST_SWITCH,
    constant_when_compiled,
    not_compiled,
)
from halfstep.precision.dispatch import active_frame
from halfstep.records import BadTypeError, BadValueError

_DEVICES = ("cpu", "cuda", "xpu", "mps")


def switch_autocast_off() -> list[str]:
    """Switch autocast off in this thread, on every device; returns where it was on.

    The bare flag, without a nesting level of `torch.autocast`: a Ctrl-C inside of an island, for
    which torch calls no hooks, then leaves nothing behind that the context around it would not
    put back.
    """
    enabled = [device for device in _DEVICES if torch.is_autocast_enabled(device)]
    for device in enabled:
        torch.set_autocast_enabled(device, False)
    return enabled


def switch_autocast_on(devices: list[str]) -> None:
    """Switch autocast on again."""
    for device in devices:
        torch.set_autocast_enabled(device, True)


def _is_active(patterns: tuple[str, ...]) -> bool:
    frame = active_frame()
    return frame is not None and frame.islands == patterns


constant_when_compiled(_is_active)  # so a compiled module keeps its islands, in one graph


class _Entered(threading.local):
    def __init__(self) -> None:
        self.stack: list[tuple[int, list[str]]] = []  # module, devices that had autocast


_entered = _Entered()


@dataclass(frozen=True)
class Island:
    """The hooks of one island. Plain data, so that modules can be copied and pickled.

    Attributes:
        patterns: Of the policy that made it; the hooks do nothing unless this policy is active.
            ``None`` for an island that is always one.
    """

    patterns: tuple[str, ...] | None = None

    def enter(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """Forward pre-hook."""
        if self.patterns is not None and not _is_active(self.patterns):
            return None
        _entered.stack.append((id(module), switch_autocast_off()))
        return to_fp32(args), to_fp32(kwargs)

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        """Forward hook; torch calls it after an exception too, even one before `enter`."""
        if _entered.stack and _entered.stack[-1][0] == id(module):
            switch_autocast_on(_entered.stack.pop()[1])


if not TRACES_AUTOCAST_SWITCH:
    not_compiled(
        Island.enter,
        Island.leave,
        because=f"an FP32 island switches autocast off, which the compiler of torch"
        f" {torch.__version__} cannot trace; torch 2.13 can. Leave fullgraph=True away",
    )


def make_island(module: nn.Module, island: Island) -> None:
    """Install the hooks, once."""
    if any(getattr(hook, "__self__", None) == island for hook in module._forward_hooks.values()):
        return
    module.register_forward_pre_hook(island.enter, with_kwargs=True, prepend=True)
    module.register_forward_hook(island.leave, always_call=True, prepend=True)


def remove_island(module: nn.Module, island: Island) -> None:
    """Take the hooks of this island away again, if it has any."""
    for hooks in (module._forward_pre_hooks, module._forward_hooks):
        for key in [k for k, hook in hooks.items() if getattr(hook, "__self__", None) == island]:
            del hooks[key]
            module._forward_pre_hooks_with_kwargs.pop(key, None)
            module._forward_hooks_always_called.pop(key, None)


def check_island(module: object, name: str = "") -> nn.Module:
    """Refuse what cannot run in FP32."""
    if not isinstance(module, nn.Module):
        raise BadTypeError(
            f"fp32() takes a torch.nn.Module, or nothing for a block, got {type(module).__name__}."
        )
    for parameter_name, p in module.named_parameters(prefix=name):
        if p.dtype in (torch.float16, torch.bfloat16):
            raise BadValueError(
                f"an FP32 island needs FP32 weights, but {parameter_name!r} is {p.dtype}; its ops"
                " would get two dtypes. Call .float() on the module first."
            )
    return module
