"""Who looks at ``optimizer.step()``: hooks, global hooks, a replaced method.

An observer may read or change gradients, so that it must find the true ones. Hooks of halfstep
itself do not: they carry a mark, and do not close the short road to the kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer
from torch.optim import optimizer as torch_optimizer

Hook = TypeVar("Hook", bound=Callable[..., Any])

_MARK = "_halfstep_leaves_gradients_alone"


def leaves_gradients_alone(hook: Hook) -> Hook:
    """Mark a hook that neither reads nor changes what an update is made of."""
    setattr(hook, _MARK, True)
    return hook


def is_harmless(hook: object) -> bool:
    """Whether a hook carries the mark of `leaves_gradients_alone`."""
    return getattr(hook, _MARK, False) is True


def is_observed(optimizer: Optimizer) -> bool:
    """Whether anything sees a call of ``optimizer.step()`` that the stock class would not.

    Args:
        optimizer: Its hooks, torch's global hooks, and a ``step`` that was replaced on the instance
            or on a stock class.
    """
    return has_replaced_step(optimizer) or has_hooks(optimizer)


def has_replaced_step(optimizer: Optimizer) -> bool:
    """Whether ``step`` was replaced: on the instance, on a stock class, or by a subclass."""
    step = optimizer.__dict__.get("step")
    if step is not None and getattr(step, "__wrapped__", None) is not type(optimizer).step:
        return True  # a scheduler's wrapper holds the method of the class
    base = _stock_base(optimizer)
    return base is not None and _below_torchs_wrapper(type(optimizer)) is not _STOCK_STEPS[base]


def stock_class(optimizer: Optimizer) -> type[Optimizer] | None:
    """The class of torch whose ``step`` this optimizer runs.

    Its own, or that of a subclass that adds what it likes and leaves the step and its state alone.
    """
    base: Any = _stock_base(optimizer)
    if base is None or _below_torchs_wrapper(type(optimizer)) is not _STOCK_STEPS[base]:
        return None
    own: Any = type(optimizer)
    return base if own._init_group is base._init_group else None


def _stock_base(optimizer: Optimizer) -> type[Optimizer] | None:
    return next((kind for kind in type(optimizer).__mro__ if kind in _STOCK_STEPS), None)


def has_hooks(optimizer: Optimizer) -> bool:
    """Whether a hook of the user's own runs around ``optimizer.step()``."""
    hooks = (
        torch_optimizer._global_optimizer_pre_hooks,
        optimizer._optimizer_step_pre_hooks,
        optimizer._optimizer_step_post_hooks,
        torch_optimizer._global_optimizer_post_hooks,
    )
    return any(each and not all(map(is_harmless, each.values())) for each in hooks)


def _below_torchs_wrapper(kind: type[Optimizer]) -> object:
    """The class's own ``step``: torch wraps it when the first instance is made."""
    step: Any = kind.step
    return step.__wrapped__ if getattr(step, "hooked", False) else step


_STOCK_STEPS: dict[type[Optimizer], object] = {
    kind: _below_torchs_wrapper(kind) for kind in (Adam, AdamW, SGD, Adagrad)
}
