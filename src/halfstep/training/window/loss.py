"""`LossSum`: a loss together with what it was summed over."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import Tensor

from halfstep.records import BadTypeError
from halfstep.update import checked_divisor
from halfstep.update.step.window import Divisor


class LossSum:
    """A summed loss and its divisor, for exact gradients over unequal micro-batches.

    A mean of means weighs a micro-batch of 10 tokens like one of 1,000. With sums the update
    divides once, by the divisor of the whole window.

    Args:
        total: The sum, a real scalar tensor with a graph.
        divisor: What it was summed over (valid tokens, samples): a number or a 0-d tensor, not
            negative. On an accelerator leave it there; nothing waits for it.
        metrics: More sums over the same tokens or samples (``correct=(pred == y).sum()``); the
            outcome has them divided by the window's divisor.

    Raises:
        BadTypeError, BadValueError: See the messages; a divisor of 0 is fine and makes a window
            whose divisors are all 0 a skip.

    Example:
        >>> import torch, halfstep as hs
        >>> loss = torch.ones(3, requires_grad=True).sum()
        >>> hs.LossSum(loss, 3)
        LossSum(total=3, divisor=3)
    """

    __slots__ = ("divisor", "metrics", "total")

    def __init__(self, total: Tensor, divisor: Divisor, **metrics: Tensor | float) -> None:
        check_loss(total)
        self.total = total
        self.divisor = checked_divisor(divisor)
        self.metrics = {
            name: _checked_metric(name, value, total) for name, value in metrics.items()
        }

    def __repr__(self) -> str:
        total = float(self.total.detach())
        return f"LossSum(total={total:g}, divisor={float(self.divisor):g})"


def check_loss(loss: object) -> None:
    """Refuse everything that is not a real scalar with a graph, one sentence each."""
    if not isinstance(loss, Tensor):
        _refuse_type(loss)
    if loss.numel() != 1:
        raise BadTypeError(
            f"the loss must be a scalar, got a tensor of shape {tuple(loss.shape)}; reduce it with"
            " .mean(), or with .sum() in a LossSum."
        )
    if not loss.is_floating_point():
        raise BadTypeError(f"the loss must be a real floating-point tensor, got {loss.dtype}.")
    if not loss.requires_grad:
        raise BadTypeError(
            "the loss needs no gradient: it was detached, computed under no_grad, or does not"
            " depend on a parameter that requires one."
        )


def _refuse_type(loss: object) -> NoReturn:
    what = type(loss).__name__
    advice = "return the scalar loss, or hs.LossSum(total, divisor)"
    if isinstance(loss, tuple):
        advice += (
            " (a tuple could mean (total, divisor) or (loss, logits); a guess would be silently"
            " wrong)"
        )
    elif isinstance(loss, dict):
        advice += ", with further sums as keywords: hs.LossSum(total, divisor, correct=...)"
    raise BadTypeError(f"the loss must be a scalar tensor or an hs.LossSum, got {what}; {advice}.")


def _checked_metric(name: str, value: Tensor | float, total: Tensor) -> Tensor:
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.is_complex():
            raise BadTypeError(
                f"metric {name!r} must be a real scalar, a sum over the same tokens or samples;"
                f" got a tensor of shape {tuple(value.shape)} and dtype {value.dtype}."
            )
        return value.detach().reshape(()).double()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadTypeError(f"metric {name!r} must be a number, got {type(value).__name__}.")
    return torch.full((), float(value), dtype=torch.float64, device=total.device)
