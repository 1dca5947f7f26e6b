"""Which module runs right now, by hooks on the modules of one model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

Models = nn.Module | Sequence[nn.Module] | None
OnResult = Callable[[nn.Module, str, Any], None]


class ModulePaths:
    """The stack of modules whose forward is running, as paths such as ``Net.blocks.0.fc``.

    Hooks of the model's own modules, so that other models and other threads are left alone. The
    path of a module that is there twice is the first one.

    Args:
        model: Whose modules to follow; several models, or ``None``, which follows nothing.
        on_result: Called with a module, its path and its result when its forward is over.
    """

    def __init__(self, model: Models, on_result: OnResult | None = None) -> None:
        self._model = model
        self._on_result = on_result
        self._stack: list[str] = []
        self._handles: list[RemovableHandle] = []

    @property
    def current(self) -> str:
        """Path of the innermost module that runs; empty outside of any."""
        return self._stack[-1] if self._stack else ""

    def attach(self) -> None:
        """Register the hooks."""
        for path, module in named_paths(self._model):
            self._follow(path, module)

    def detach(self) -> None:
        """Remove them, after an exception too."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._stack.clear()

    def _follow(self, path: str, module: nn.Module) -> None:
        stack = self._stack
        depths: list[int] = []  # a module may call itself

        def enter(module: nn.Module, args: Any) -> None:
            depths.append(len(stack))
            stack.append(path)

        def leave(module: nn.Module, args: Any, result: Any) -> None:
            if depths:
                del stack[depths.pop() :]  # with whatever an exception left above
            if self._on_result is not None and result is not None:
                self._on_result(module, path, result)

        self._handles.append(module.register_forward_pre_hook(enter))
        self._handles.append(module.register_forward_hook(leave, always_call=True))


def named_paths(model: Models) -> list[tuple[str, nn.Module]]:
    """Every module of each model once, with its path; the model's class name comes first."""
    found = []
    for one in models_in(model):
        root = type(one).__name__
        found += [(f"{root}.{name}" if name else root, m) for name, m in one.named_modules()]
    return found


def models_in(model: Models) -> Sequence[nn.Module]:
    """One model, several or none as a sequence."""
    if model is None:
        return ()
    return (model,) if isinstance(model, nn.Module) else model


def parameter_path(model: nn.Module, name: str) -> str:
    """Path of the module that a parameter or buffer belongs to.

    Args:
        model: The model.
        name: As in ``named_parameters``.
    """
    owner = name.rpartition(".")[0]
    root = type(model).__name__
    return f"{root}.{owner}" if owner else root
