"""Hooks on parameters: they see true gradients while the engine runs backward.

``parameter.register_hook`` and ``register_post_accumulate_grad_hook`` run inside backward, where
gradients carry the loss scale. A clamp at 0.5 would act at 0.5 / S.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from halfstep.records import CallOrderError
from halfstep.update.optimizers.observers import is_harmless

Named = Sequence[tuple[str, Tensor]]


_NOTHING = contextlib.nullcontext()


class ParameterHooks:
    """The hooks of some parameters.

    Args:
        parameters: With their names; asked for again whenever a hook was registered somewhere.
    """

    def __init__(self, parameters: Callable[[], Named]) -> None:
        self._parameters = parameters
        self._last_handle = -1
        self._hooked: list[tuple[str, Tensor]] = []

    def see_true_gradients(
        self, unit: Callable[[], float | Tensor]
    ) -> contextlib.AbstractContextManager[None]:
        """Wrap every hook for the time of one backward.

        Args:
            unit: Returns what the gradients of this backward carry; a number or a 0-d tensor.

        Raises:
            CallOrderError: From inside backward, where a hook took a gradient away: what it did
                with it cannot be put back.
        """
        hooked = self._find()
        return self._wrapped(hooked, unit()) if hooked else _NOTHING

    @contextlib.contextmanager
    def _wrapped(self, hooked: Named, carried: float | Tensor) -> Iterator[None]:
        originals: list[tuple[dict[int, Any], int, Any]] = []
        for name, p in hooked:
            for hooks, wrap in (
                (_hooks_before(p), _seeing_true_gradient),
                (_hooks_after(p), _seeing_true_grad),
            ):
                for key, hook in list(hooks.items()):
                    if not is_harmless(hook):
                        originals.append((hooks, key, hook))
                        hooks[key] = wrap(hook, carried, name)
        try:
            yield
        finally:
            for hooks, key, hook in originals:
                if key in hooks:  # a hook may remove itself
                    hooks[key] = hook

    def _find(self) -> list[tuple[str, Tensor]]:
        if self._last_handle != RemovableHandle.next_id:
            self._last_handle = RemovableHandle.next_id
            self._hooked = [
                (name, p) for name, p in self._parameters() if _hooks_before(p) or _hooks_after(p)
            ]
        return self._hooked


def _hooks_before(p: Tensor) -> dict[int, Any]:
    hooks: Any = p._backward_hooks
    return {} if hooks is None else hooks  # the very dictionary that autograd calls


def _hooks_after(p: Tensor) -> dict[int, Any]:
    hooks: Any = getattr(p, "_post_accumulate_grad_hooks", None)
    return {} if hooks is None else hooks


def _seeing_true_gradient(hook: Any, unit: float | Tensor, name: str) -> Any:
    """A tensor hook: gets a gradient, may return another one or change it in place."""

    def call(grad: Tensor) -> Tensor | None:
        true = grad / unit
        version = true._version
        changed = hook(true)
        if changed is None and true._version != version:
            changed = true
        return None if changed is None else changed * unit

    return call


def _seeing_true_grad(hook: Any, unit: float | Tensor, name: str) -> Any:
    """A hook after accumulation: gets the parameter, may change or replace its ``.grad``."""

    @torch.no_grad()
    def call(p: Tensor) -> None:
        scaled = p.grad
        if scaled is None:
            return
        p.grad = true = scaled / unit
        version, weight = true._version, p._version
        try:
            hook(p)
        except BaseException:
            p.grad = scaled
            raise
        if p.grad is None or p._version != weight:
            what = getattr(hook, "__qualname__", type(hook).__name__)
            raise CallOrderError(
                f"the hook {what!r} on parameter {name!r} updates it inside backward (this one has"
                " moved); such an update cannot be skipped on an overflow. Remove the hook and let"
                " engine.step() update the weights."
            )
        p.grad = scaled if p.grad is true and true._version == version else p.grad * unit

    return call
