"""``with hs.fp32():`` around the ops of a loss function, or of a model's own forward, on trial."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from halfstep.precision import fp32


class OwnOps:
    """A context in which code outside of some modules runs in FP32, and these as before.

    Args:
        starts: Modules whose forward begins the FP32 part; none where it begins with the context
            (the loss function).
        leaves_out: Modules that run as before: those that the FP32 part calls.
    """

    def __init__(self, starts: Sequence[nn.Module], leaves_out: Sequence[nn.Module]) -> None:
        self._starts = starts
        self._leaves_out = leaves_out
        self._handles: list[RemovableHandle] = []
        self._block = fp32()
        self._is_on = False
        self._stack: list[bool] = []

    def __enter__(self) -> None:
        for modules, wanted in ((self._starts, True), (self._leaves_out, False)):
            for module in modules:
                self._follow(module, wanted)
        if not self._starts:
            self._switch(True)

    def __exit__(self, *exception: object) -> None:
        self._switch(False)
        self._stack.clear()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _follow(self, module: nn.Module, wanted: bool) -> None:
        def enter(module: nn.Module, args: Any) -> None:
            self._stack.append(self._is_on)
            self._switch(wanted)

        def leave(module: nn.Module, args: Any, result: Any) -> None:
            if self._stack:
                self._switch(self._stack.pop())

        self._handles.append(module.register_forward_pre_hook(enter))
        self._handles.append(module.register_forward_hook(leave, always_call=True))

    def _switch(self, on: bool) -> None:
        if on and not self._is_on:
            self._block.__enter__()
        elif self._is_on and not on:
            self._block.__exit__(None, None, None)
        self._is_on = on


def own_ops(model: nn.Module, in_loss: bool) -> OwnOps:
    """The ops of the loss function, or of the model's own forward.

    Args:
        model: The model; a `ModuleDict` for several.
        in_loss: Which of both.
    """
    models = list(model.children()) if isinstance(model, nn.ModuleDict) else [model]
    if in_loss:
        return OwnOps((), models)
    return OwnOps(models, [child for each in models for child in each.children()])
