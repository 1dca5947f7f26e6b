"""How an optimizer takes the multiplier: by its fused kernel, or by one in-place division.

Three roads, chosen anew at every update because a loaded checkpoint, a hook or a new parameter
group can close one:

1. the kernel directly (`KernelPlan`), where nothing observes ``optimizer.step()``;
2. ``optimizer.step()`` of a fused optimizer, which divides by ``optimizer.grad_scale``;
3. any other optimizer: divide the gradients in place, then ``optimizer.step()``.

A device can skip by itself on the first, and on the second for a stock class that has hooks: of it
the gradients are divided in place as well, because hooks must find the true ones.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, Optimizer

from halfstep.records import BadTypeError, BadValueError
from halfstep.update.optimizers.fuse import fuse_again, fuse_if_free, is_fused, unfuse
from halfstep.update.optimizers.gradients import Gradients, divide_, in_float32_range, match_layouts
from halfstep.update.optimizers.kernel_plan import KernelPlan, has_fused_state
from halfstep.update.optimizers.kernels import kernel_of
from halfstep.update.optimizers.launch import Launch, launch_all
from halfstep.update.optimizers.observers import has_hooks, has_replaced_step, is_observed
from halfstep.update.optimizers.undo import Undo
from halfstep.update.ranks.shards import has_dtensors


class OptimizerAdapter:
    """Applies a decided update to one optimizer.

    Args:
        optimizer: Any `torch.optim.Optimizer` whose ``step()`` needs no closure.
        fuse: ``"auto"`` or ``False``, see `fuse_if_free`.
    """

    def __init__(self, optimizer: Optimizer, fuse: str | bool) -> None:
        if fuse not in ("auto", False):
            raise BadValueError(
                f"fuse must be 'auto' or False, got {fuse!r}; for a fused optimizer pass"
                " fused=True to the optimizer itself."
            )
        _refuse_closures(optimizer)
        self.optimizer = optimizer
        self._fused_by_us = fuse == "auto" and fuse_if_free(optimizer)
        self._plan: KernelPlan | None = None
        self._undo: Undo | None = None
        self._most_stepped = 0

    def can_skip_itself(self, params: list[Tensor]) -> bool:
        """Whether the update can be held on the device, without the host knowing.

        Either by the kernels, or by ``optimizer.step()`` of a fused optimizer with hooks.
        """
        return self.kernels_can_skip(params) or self._hooks_can_wait(params)

    def kernels_can_skip(self, params: list[Tensor]) -> bool:
        """Whether the kernels can hold the update, called directly.

        Not before all state exists: torch creates it uninitialised in a fused first step, and a
        skipped first step would leave it so. Not for float64, whose accuracy the kernels' float32
        `grad_scale` would cost, nor over several devices, which would need a flag each.
        """
        plan = self._current_plan(params) if is_fused(self.optimizer) else None
        return plan is not None and plan.is_uniform

    def _hooks_can_wait(self, params: list[Tensor]) -> bool:
        """Whether ``optimizer.step()`` may run its hooks before the host knows of the decision.

        As with torch's `GradScaler` they then run at a skipped step too, and find `found_inf` on
        the optimizer. They find true gradients, which have been divided in place.
        """
        return (
            kernel_of(self.optimizer) is not None
            and is_fused(self.optimizer)
            and not has_replaced_step(self.optimizer)
            and not has_dtensors(params)
            and has_hooks(self.optimizer)
            and {(p.device, p.dtype) for p in params} == {(params[0].device, torch.float32)}
            and has_fused_state(self.optimizer, params)
        )

    def apply(
        self, gradients: Gradients, multiplier: float | Tensor, found_inf: Tensor | None
    ) -> Any:
        """Divide the gradients by the multiplier and step.

        Args:
            gradients: May be overwritten.
            multiplier: A float, or a 0-d float32 tensor if `can_skip_itself` said so.
            found_inf: 0-d float32 for an undecided update, else ``None``: the update happens.

        Returns:
            What ``optimizer.step`` returned, where it was called.

        Syncs: no.
        """
        launches = self.launches(gradients, multiplier, found_inf)
        if launches is None:
            return self.step(gradients, multiplier, found_inf)
        if (error := launch_all(launches)) is not None:
            raise error
        return None

    def launches(
        self, gradients: Gradients, multiplier: float | Tensor, found_inf: Tensor | None
    ) -> list[Launch] | None:
        """The kernels of an update, ready to run; ``None`` if ``optimizer.step()`` must be called.

        Args:
            gradients, multiplier, found_inf: As for `apply`.
        """
        params, grads, _ = gradients
        plan = self._current_plan(params) if self._is_fused(gradients) else None
        if plan is None:
            return None
        if not (plan.is_contiguous and all(map(Tensor.is_contiguous, grads))):
            grads = match_layouts(params, grads)
        return plan.prepare(grads, multiplier, found_inf)

    def step(
        self, gradients: Gradients, multiplier: float | Tensor, found_inf: Tensor | None = None
    ) -> Any:
        """Call ``optimizer.step()`` on divided gradients; call `undo` if it raises.

        Args:
            gradients, multiplier, found_inf: As for `apply`.

        Returns:
            What ``optimizer.step`` returned.
        """
        params, grads, _ = gradients
        # A step that makes state may run out of memory. Later ones keep copies on a CPU alone:
        # elsewhere the memory for a second set of weights and state is what nobody has.
        keeps_copies = len(params) > self._most_stepped or all(p.is_cpu for p in params[:1])
        self._undo = Undo(self.optimizer, params, keeps_copies=keeps_copies)
        fused = self._is_fused(gradients)
        if fused:
            grads = match_layouts(params, grads)
        if found_inf is not None:
            result = self._step_undecided(grads, multiplier, found_inf)
        elif isinstance(multiplier, Tensor):
            raise AssertionError("only undecided updates have a multiplier on the device")
        elif fused and kernel_of(self.optimizer) is not None:
            result = self._step_fused(params, grads, multiplier)
        else:
            divide_(grads, multiplier)
            result = self.optimizer.step()
        self._most_stepped = max(self._most_stepped, len(params))
        return result

    def undo(self) -> bool:
        """Put the optimizer back after a `step` of its own or of another optimizer raised.

        Returns:
            Whether weights and state are what they were before.
        """
        undo, self._undo = self._undo, None
        return undo is None or undo.restore()

    def forget(self) -> None:
        """The step is over: drop what `undo` would need."""
        self._undo = None

    def _is_fused(self, gradients: Gradients) -> bool:
        """Whether the fused kernels take these gradients; switches back what a load has undone."""
        fused = is_fused(self.optimizer)
        if self._fused_by_us and not fused:
            fused = fuse_again(self.optimizer)
        if fused and not gradients.are_dense:
            self._leave_fused_road()
            fused = False
        return fused

    def _leave_fused_road(self) -> None:
        if not self._fused_by_us:
            raise BadValueError(
                f"{type(self.optimizer).__name__} with fused=True takes no sparse gradient; build"
                " it without fused=True, or the embedding without sparse=True."
            )
        self._fused_by_us = False
        unfuse(self.optimizer, "which takes no sparse gradient")

    def _current_plan(self, params: list[Tensor]) -> KernelPlan | None:
        if self._plan is None or not self._plan.is_current(params):
            self._plan = KernelPlan.build(self.optimizer, params)
        return self._plan

    def _step_undecided(
        self, grads: list[Tensor], multiplier: float | Tensor, found_inf: Tensor
    ) -> Any:
        """Where `_hooks_can_wait`: true gradients for the hooks, and the kernel skips by itself."""
        if isinstance(multiplier, Tensor):
            torch._foreach_div_(grads, multiplier)
        else:
            divide_(grads, multiplier)
        self.optimizer.found_inf = found_inf  # type: ignore[attr-defined]
        try:
            return self.optimizer.step()
        finally:
            self.optimizer.__dict__.pop("found_inf", None)

    def _step_fused(self, params: list[Tensor], grads: list[Tensor], multiplier: float) -> Any:
        if is_observed(self.optimizer):
            divide_(grads, multiplier)  # hooks must find the true gradients
            if not self._takes(params):
                with _unfused(self.optimizer, foreach=False):
                    return self.optimizer.step()
            return self.optimizer.step()
        if has_dtensors(params):
            divide_(grads, multiplier)
            return self._step_shards(params)
        if _lacks_some_momentum(self.optimizer, params):
            divide_(grads, multiplier)
            with _unfused(self.optimizer):
                return self.optimizer.step()
        if any(p.dtype is torch.float64 for p in params) or not in_float32_range(multiplier):
            divide_(grads, multiplier)
            multiplier = 1.0
        try:
            if multiplier != 1.0:
                self.optimizer.grad_scale = torch.full(  # type: ignore[attr-defined]
                    (), multiplier, dtype=torch.float32, device=params[0].device
                )
            return self.optimizer.step()
        finally:
            self.optimizer.__dict__.pop("grad_scale", None)

    def _takes(self, params: list[Tensor]) -> bool:
        """Whether torch has a rule for one fused step over these parameters."""
        is_one_mesh = len({getattr(p, "device_mesh", None) for p in params}) == 1
        return not has_dtensors(params) or (isinstance(self.optimizer, Adam) and is_one_mesh)

    def _step_shards(self, params: list[Tensor]) -> Any:
        """A step that makes state, over sharded parameters: torch's rules take one mesh at a time.

        For most optimizers it has none; those make their state one tensor after the other.
        """
        if not isinstance(self.optimizer, Adam):
            with _unfused(self.optimizer, foreach=False):
                return self.optimizer.step()
        result = None
        grads = [p.grad for p in params]
        meshes = [getattr(p, "device_mesh", None) for p in params]
        try:
            for mesh in dict.fromkeys(meshes):
                for p, grad, own in zip(params, grads, meshes, strict=True):
                    p.grad = grad if own == mesh else None
                result = self.optimizer.step()
        finally:
            for p, grad in zip(params, grads, strict=True):
                p.grad = grad
        return result


def _lacks_some_momentum(optimizer: Optimizer, params: list[Tensor]) -> bool:
    """Whether SGD has momentum for some of these parameters only; its fused kernel then raises."""
    if not isinstance(optimizer, SGD):
        return False
    wanted = set(map(id, params))
    for group in optimizer.param_groups:
        members = [p for p in group["params"] if id(p) in wanted]
        known = [optimizer.state[p].get("momentum_buffer") is not None for p in members]
        if group["momentum"] and any(known) and not all(known):
            return True
    return False


@contextlib.contextmanager
def _unfused(optimizer: Optimizer, foreach: bool | None = None) -> Iterator[None]:
    before = [group.get("foreach") for group in optimizer.param_groups]
    for group, own in zip(optimizer.param_groups, before, strict=True):
        group["fused"], group["foreach"] = False, own if foreach is None else foreach
    try:
        yield
    finally:
        for group, own in zip(optimizer.param_groups, before, strict=True):
            group["fused"], group["foreach"] = True, own


def _refuse_closures(optimizer: object) -> None:
    if not isinstance(optimizer, Optimizer):
        raise BadTypeError(
            f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}."
        )
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise BadValueError(
            f"{type(optimizer).__name__}.step needs a closure that runs forward and backward"
            " itself; such an optimizer cannot be skipped on overflow. Use a first-order"
            " optimizer, or train in FP32 without halfstep."
        )
