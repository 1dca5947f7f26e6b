"""`ScaledBackward`: from a loss to scaled gradients, and the window that counts it."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial

import torch
from torch import Tensor
from torch.nn import Parameter

from halfstep.records import BadTypeError, BadValueError, CallOrderError
from halfstep.training.window.loss import LossSum, check_loss
from halfstep.training.window.parameter_hooks import ParameterHooks
from halfstep.update import LossScale, OptimizerSlot, Window, power_of_two_near
from halfstep.update.loss_scale.base import promote
from halfstep.update.optimizers.gradients import values_of
from halfstep.update.ranks.shards import local_of

logger = logging.getLogger("halfstep")

AgreeOnNominal = Callable[[Sequence[OptimizerSlot], bool, float], float]


def _alone(slots: Sequence[OptimizerSlot], is_sum: bool, nominal: float) -> float:
    return nominal


class ScaledBackward:
    """Adds micro-batches to the windows of one or several optimizers.

    Args:
        slots: All optimizers.
        context: Makes the context for backward: autocast is off in it, and checkpoints recompute
            under the policy.
        agree_on_nominal: Called at the start of a window with its optimizers, whether its losses
            are sums, and the nominal divisor that this process would take; several processes agree
            there on one.

    Attributes:
        has_own: Whether losses were ever scaled for a backward of the user's own.
        nominal: The power of two near the first divisor of the run, by which sums are divided in
            backward so that FP16 keeps its range; 0 before the first `LossSum`.
    """

    def __init__(
        self,
        slots: Sequence[OptimizerSlot],
        context: Callable[[], AbstractContextManager[object]],
        agree_on_nominal: AgreeOnNominal = _alone,
    ) -> None:
        self.nominal = 0.0
        self._slots = list(slots)
        self._context = context
        self._agree_on_nominal = agree_on_nominal
        self.has_own = False
        self._scaled: list[weakref.ref[Tensor]] = []
        self._number = 0
        self._hooks = ParameterHooks(
            lambda: [(slot.name_of(p), p) for slot in slots for p in slot.parameters()]
        )
        self._has_warned_of_fp16_loss = False

    def __call__(
        self,
        slots: Sequence[OptimizerSlot],
        loss: Tensor | LossSum,
        *,
        needs_divisor: bool,
        retain_graph: bool,
    ) -> None:
        """One micro-batch.

        Args:
            slots: The optimizers whose parameters get gradients.
            loss: As for `Engine.backward`.
            needs_divisor: Whether a token schedule counts divisors.
            retain_graph: As in `torch.Tensor.backward`.
        """
        total = loss.total if isinstance(loss, LossSum) else loss
        check_loss(total)
        divisor = loss.divisor if isinstance(loss, LossSum) else None
        if any(reference() is total for reference in self._scaled):
            raise CallOrderError(
                "engine.backward() scales the loss itself; give it the loss instead of"
                " engine.scale(loss)."
            )
        self._scaled.clear()
        for slot in slots:
            _check_micro_batch(slot.window, divisor, slot.parameters(), needs_divisor)
        self._warn_of_fp16_loss(total)
        scale = _the_loss_scale(slots)
        nominal = self._nominal_for(slots, divisor)
        inputs = self._inputs(slots)
        scalar = promote(total)
        if scalar.dim():
            scalar = scalar.reshape(())  # a node of the graph that a 0-d loss is spared

        def unit() -> float | Tensor:
            """What the gradients of this micro-batch carry; those of its own mean loss are true."""
            if isinstance(divisor, Tensor):  # on a device, where asking for its value would wait
                return scale.value * torch.where(divisor == 0, 1.0, divisor / nominal)
            return scale.value * (divisor / nominal) if divisor else scale.value

        with self._context(), self._hooks.see_true_gradients(unit):
            normalised = scalar if divisor is None else scalar / nominal
            torch.autograd.backward(
                scale.scale(normalised), retain_graph=retain_graph, inputs=inputs
            )
        if not any(slot.window.has_gradients for slot in slots):
            _refuse_loss_of_another_leaf(slots, total)
        metrics = loss.metrics if isinstance(loss, LossSum) else {}
        counted = scalar.double() if divisor is not None else scalar
        self._number += 1
        for slot in slots:
            slot.window.nominal, slot.window.own_loss = nominal, None
            slot.window.add(counted, divisor, metrics, self._number)
            slot.window.has_gradients = _any_gradient(slot.parameters())

    def scale(self, slots: Sequence[OptimizerSlot], outputs: Tensor) -> Tensor:
        """Outputs times the loss scale, for a backward of the user's own.

        Args:
            slots: The optimizers whose parameters will get gradients.
            outputs: Real and floating, of any shape.
        """
        if not (isinstance(outputs, Tensor) and outputs.is_floating_point()):
            what = str(outputs.dtype) if isinstance(outputs, Tensor) else type(outputs).__name__
            raise BadTypeError(f"scale() takes a real floating-point tensor, got {what}.")
        self.has_own = True
        scaled = _the_loss_scale(slots).scale(outputs)
        if scaled.requires_grad:
            hook = partial(self._note_own_backward, list(slots))
            scaled.register_hook(hook)  # type: ignore[no-untyped-call]
        if scaled is not outputs:
            self._scaled.append(weakref.ref(scaled))
        for slot in slots:
            if slot.window.num_micro_batches:
                continue
            loss = outputs.detach().double().sum()
            earlier = slot.window.own_loss
            slot.window.own_loss = loss if earlier is None else earlier + loss
        return scaled

    def _note_own_backward(self, slots: Sequence[OptimizerSlot], grad: Tensor) -> None:
        """A gradient flows through a loss that `scale` made."""
        if not torch.is_grad_enabled():  # else an inner gradient, with a graph for a penalty
            for slot in slots:
                slot.window.own_backward_ran = slot.window.own_loss is not None

    def count_own(self, slots: Sequence[OptimizerSlot]) -> None:
        """Make a window of the gradients that the user's own backward has left, if it has."""
        self._scaled.clear()
        for slot in slots:
            window = slot.window
            if window.own_loss is None or window.num_micro_batches:
                continue
            if _any_gradient(slot.parameters()):
                self._number += 1
                window.add(window.own_loss, None, {}, self._number)
                window.has_gradients = True

    def _nominal_for(self, slots: Sequence[OptimizerSlot], divisor: float | Tensor | None) -> float:
        used = {slot.window.nominal for slot in slots if slot.window.num_micro_batches}
        if len(used) > 1:
            raise CallOrderError(
                "the open windows of these optimizers were begun with different divisors; close"
                " them with step() before a backward for all of them."
            )
        if used:
            return used.pop()
        is_sum = divisor is not None
        nominal = self.nominal
        if divisor is not None and not nominal:
            nominal = power_of_two_near(divisor)
        nominal = self._agree_on_nominal(slots, is_sum, nominal)
        if not is_sum:
            return 1.0
        self.nominal = nominal
        return nominal or 1.0

    def _inputs(self, slots: Sequence[OptimizerSlot]) -> list[Tensor] | None:
        """The parameters that get gradients; ``None`` for all that the loss depends on."""
        if len(slots) == len(self._slots):
            return None
        found = [p for slot in slots for p in slot.parameters() if p.requires_grad]
        if not found:
            names = ", ".join(repr(slot.name) for slot in slots)
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


def _refuse_loss_of_another_leaf(slots: Sequence[OptimizerSlot], loss: Tensor) -> None:
    """Refuse the first pass of a two-pass method: its gradient goes into a tensor, scaled."""
    if loss.grad_fn is None or any(_any_gradient(slot.parameters()) for slot in slots):
        return
    nodes, seen = [loss.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, Tensor) and not isinstance(leaf, Parameter):
            raise CallOrderError(
                "this loss reaches no parameter of the optimizer but a tensor of your own (shape"
                f" {tuple(leaf.shape)}), whose gradient now carries the loss scale, and it would"
                " count as a micro-batch. In a method of two passes write"
                " engine.scale(loss).backward(), and surrogate.backward() for each part after it."
            )
        nodes += [parent for parent, _ in node.next_functions if parent is not None]


def _the_loss_scale(slots: Sequence[OptimizerSlot]) -> LossScale:
    scales = {id(slot.loss_scale): slot.loss_scale for slot in slots}
    if len(scales) > 1:
        names = ", ".join(repr(slot.name) for slot in slots)
        raise CallOrderError(
            f"{names} have loss scales of their own, and one backward has one: name the optimizers"
            " of one scale, backward(loss, optimizers=(...,)), or let them share a scale."
        )
    return slots[0].loss_scale


def _check_micro_batch(
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
        if window.own_backward_ran:
            raise CallOrderError(
                "this window was begun by your own backward through engine.scale(); make its other"
                " gradients by loss.backward() or engine.scale(loss).backward() as well, or all of"
                " them by engine.backward(loss)."
            )
        _refuse_stray_gradients(parameters)
    elif window.has_gradients and not _any_gradient(parameters):
        raise CallOrderError(
            "the gradients of this window were cleared between two backward() calls; remove the"
            " zero_grad(), engine.step() does that at the end of the window."
        )


def _any_gradient(parameters: Sequence[Tensor]) -> bool:
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
    return values_of(local_of(p.grad.coalesce() if p.grad.is_sparse else p.grad))
