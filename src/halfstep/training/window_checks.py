"""What `Engine.backward` refuses, one sentence each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from halfstep.records import BadTypeError, CallOrderError
from halfstep.update import Window


def check_micro_batch(
    window: Window,
    divisor: float | Tensor | None,
    parameters: Sequence[Tensor],
    needs_divisor: bool,
) -> None:
    """Refuse a micro-batch that does not fit what the window holds.

    Args:
        window: Before this micro-batch.
        divisor: Of the loss; ``None`` for a mean.
        parameters: Those of the optimizer.
        needs_divisor: Whether a token schedule counts divisors.
    """
    window.check_kind(divisor)
    if divisor is None and needs_divisor:
        raise BadTypeError(
            "a token schedule needs to know how many tokens a loss is made of; return"
            " hs.LossSum(total, divisor) instead of a mean."
        )
    if window.true_gradients:
        raise CallOrderError(
            "backward after gradients() in the same window would add scaled gradients to"
            " unscaled ones; call gradients() after the last backward."
        )
    if not window.num_micro_batches:
        _refuse_stray_gradients(parameters)
    elif window.has_gradients and not any_gradient(parameters):
        raise CallOrderError(
            "the gradients of this window were cleared between two backward() calls; remove the"
            " zero_grad(), engine.step() does that at the end of the window."
        )


def any_gradient(parameters: Sequence[Tensor]) -> bool:
    """Whether a parameter has a gradient."""
    return any(p.grad is not None for p in parameters)


def _refuse_stray_gradients(parameters: Sequence[Tensor]) -> None:
    """Refuse to start a window on gradients that the engine did not make.

    Zeros (``zero_grad(set_to_none=False)``) are harmless and dropped.
    """
    stray = [p for p in parameters if p.grad is not None]
    if any(bool(torch.count_nonzero(_values(p))) for p in stray):
        raise CallOrderError(
            "there are gradients that engine.backward() of this window did not make (a"
            " loss.backward() of your own, or another engine's); they must not be mixed with scaled"
            " ones. Use engine.backward(loss), or optimizer.zero_grad() before the window."
        )
    for p in stray:
        p.grad = None


def _values(p: Tensor) -> Tensor:
    assert p.grad is not None
    return p.grad.coalesce().values() if p.grad.is_sparse else p.grad
