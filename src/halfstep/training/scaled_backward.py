"""`ScaledBackward`: from a loss to scaled gradients, and the window that counts it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from halfstep.records import BadValueError, CallOrderError
from halfstep.training.loss import LossSum, check_loss
from halfstep.training.window_checks import any_gradient, check_micro_batch
from halfstep.update import Lane, LossScale, power_of_two_near
from halfstep.update.loss_scale import promote

logger = logging.getLogger("halfstep")


class ScaledBackward:
    """Adds micro-batches to the windows of one or several optimizers.

    Args:
        lanes: All optimizers.
        context: Makes the context for backward: autocast is off in it, and checkpoints recompute
            under the policy.

    Attributes:
        nominal: The power of two near the first divisor of the run, by which sums are divided in
            backward so that FP16 keeps its range; 0 before the first `LossSum`.
    """

    def __init__(
        self, lanes: Sequence[Lane], context: Callable[[], AbstractContextManager[object]]
    ) -> None:
        self.nominal = 0.0
        self._lanes = list(lanes)
        self._context = context
        self._number = 0
        self._has_warned_of_fp16_loss = False

    def __call__(
        self,
        lanes: Sequence[Lane],
        loss: Tensor | LossSum,
        *,
        needs_divisor: bool,
        retain_graph: bool,
    ) -> None:
        """One micro-batch.

        Args:
            lanes: The optimizers whose parameters get gradients.
            loss: As for `Engine.backward`.
            needs_divisor: Whether a token schedule counts divisors.
            retain_graph: As in `torch.Tensor.backward`.
        """
        total = loss.total if isinstance(loss, LossSum) else loss
        check_loss(total)
        divisor = loss.divisor if isinstance(loss, LossSum) else None
        for lane in lanes:
            check_micro_batch(lane.window, divisor, lane.parameters(), needs_divisor)
        self._warn_of_fp16_loss(total)
        scale = _the_loss_scale(lanes)
        nominal = self._nominal_for(lanes, divisor)
        inputs = self._inputs(lanes)
        scalar = promote(total).reshape(())
        with self._context():
            normalised = scalar if divisor is None else scalar / nominal
            torch.autograd.backward(
                scale.scale(normalised), retain_graph=retain_graph, inputs=inputs
            )
        metrics = loss.metrics if isinstance(loss, LossSum) else {}
        counted = scalar.double() if divisor is not None else scalar
        self._number += 1
        for lane in lanes:
            lane.window.nominal = nominal
            lane.window.add(counted, divisor, metrics, self._number)
            lane.window.has_gradients = any_gradient(lane.parameters())

    def _nominal_for(self, lanes: Sequence[Lane], divisor: float | Tensor | None) -> float:
        used = {lane.window.nominal for lane in lanes if lane.window.num_micro_batches}
        if len(used) > 1:
            raise CallOrderError(
                "the open windows of these optimizers were begun with different divisors; close"
                " them with step() before a backward for all of them."
            )
        if used:
            return used.pop()
        if divisor is None:
            return 1.0
        self.nominal = self.nominal or power_of_two_near(divisor)
        return self.nominal or 1.0

    def _inputs(self, lanes: Sequence[Lane]) -> list[Tensor] | None:
        """The parameters that get gradients; ``None`` for all that the loss depends on."""
        if len(lanes) == len(self._lanes):
            return None
        found = [p for lane in lanes for p in lane.parameters() if p.requires_grad]
        if not found:
            names = ", ".join(repr(lane.name) for lane in lanes)
            raise BadValueError(
                f"every parameter of {names} is frozen (requires_grad=False); there is nothing to"
                " compute gradients for."
            )
        return found

    def _warn_of_fp16_loss(self, loss: Tensor) -> None:
        if loss.dtype is torch.float16 and not self._has_warned_of_fp16_loss:
            self._has_warned_of_fp16_loss = True
            logger.warning(
                "the loss is FP16: its own gradient is the loss scale, which overflows at 65536."
                " Compute the loss in FP32, from logits.float() (said once)"
            )


def _the_loss_scale(lanes: Sequence[Lane]) -> LossScale:
    scales = {id(lane.loss_scale): lane.loss_scale for lane in lanes}
    if len(scales) > 1:
        names = ", ".join(repr(lane.name) for lane in lanes)
        raise CallOrderError(
            f"{names} have loss scales of their own, and one backward has one: name the optimizers"
            " of one scale, backward(loss, optimizers=(...,)), or let them share a scale."
        )
    return lanes[0].loss_scale
