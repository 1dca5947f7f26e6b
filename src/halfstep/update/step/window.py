"""`Window`: what the micro-batches of one update have added up so far."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from halfstep.records import BadTypeError, BadValueError, CallOrderError

Divisor = float | int | Tensor


@dataclass
class Window:
    """Sums over the micro-batches since the last step.

    Attributes:
        micro_batches: The numbers of its backward calls in the run.
        loss_total: Sum of the unscaled losses, on the device.
        divisor: Sum of divisors; ``None`` while all losses are means.
        nominal: The power of two that the losses were divided by in backward.
        metrics: Sums of the extra values.
        own_loss: Sum of the losses that the user scaled for a backward of their own.
        own_backward_ran: Whether they did run it.
        has_gradients: Whether a parameter had a gradient after the last backward.
        true_gradients: Whether ``.grad`` holds unscaled, normalised gradients already.
    """

    micro_batches: list[int] = field(default_factory=list)
    loss_total: Tensor | None = None
    divisor: Divisor | None = None
    nominal: float = 1.0
    metrics: dict[str, Tensor] = field(default_factory=dict)
    own_loss: Tensor | None = None
    own_backward_ran: bool = False
    has_gradients: bool = False
    true_gradients: bool = False

    @property
    def num_micro_batches(self) -> int:
        """How many backward passes; 0 while the window is not open."""
        return len(self.micro_batches)

    @property
    def is_open(self) -> bool:
        """Whether gradients of this window carry its loss scale, so that the scale must stay."""
        return bool(self.micro_batches) or self.own_loss is not None

    @property
    def weight(self) -> Divisor:
        """What the window's sums are divided by: its divisor, or its number of micro-batches."""
        return self.num_micro_batches if self.divisor is None else self.divisor

    def sums(self) -> list[Divisor]:
        """Loss total, weight and metrics, in the order that records are made from."""
        assert self.loss_total is not None
        return [self.loss_total, self.weight, *self.metrics.values()]

    def check_kind(self, divisor: Divisor | None) -> None:
        """Refuse a mean loss after a sum, and a sum after a mean."""
        if self.num_micro_batches and (divisor is None) != (self.divisor is None):
            raise CallOrderError(
                "a window holds mean losses or LossSums, not both: how much a mean should weigh"
                " against a sum is unknown. Return hs.LossSum(total, divisor) for every"
                " micro-batch."
            )

    def add(
        self, loss: Tensor, divisor: Divisor | None, metrics: dict[str, Tensor], number: int = 0
    ) -> None:
        """Count one micro-batch.

        Args:
            loss: Unscaled, not yet divided.
            divisor: Of the loss; ``None`` for a mean.
            metrics: Extra sums.
            number: Of the backward call, which several windows may share.
        """
        detached = loss.detach()
        self.loss_total = detached if self.loss_total is None else self.loss_total + detached
        if divisor is not None:
            self.divisor = divisor if self.divisor is None else self.divisor + divisor
        for name, value in metrics.items():
            self.metrics[name] = self.metrics[name] + value if name in self.metrics else value
        self.micro_batches.append(number)


def checked_divisor(divisor: object) -> Divisor:
    """A divisor that can be used, or one sentence why not.

    Syncs: no; a device tensor's value is checked with the update.
    """
    if isinstance(divisor, Tensor):
        if divisor.dim() or divisor.is_complex():
            raise BadTypeError(
                "the divisor of a LossSum must be a number or a 0-d real tensor, got a tensor of"
                f" shape {tuple(divisor.shape)} and dtype {divisor.dtype}."
            )
        if divisor.device.type != "cpu":
            return divisor.detach().to(torch.float64)
        divisor = divisor.item()
    if isinstance(divisor, bool) or not isinstance(divisor, (int, float)):
        raise BadTypeError(
            "the divisor of a LossSum must be a number or a 0-d tensor, got"
            f" {type(divisor).__name__}."
        )
    if not (math.isfinite(divisor) and divisor >= 0):
        raise BadValueError(
            f"the divisor of a LossSum must be finite and not negative, got {divisor}; it is what"
            " the loss was summed over (valid tokens, samples)."
        )
    return divisor
