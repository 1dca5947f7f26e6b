"""How the drop-in calls an optimizer: which roads it has, and what torch's class would pass.

1. A stock fused optimizer takes multiplier and decision by its kernel (`OptimizerAdapter`).
2. Any other optimizer that declares ``_step_supports_amp_scaling`` (a subclass, one with hooks or
   tensor hyperparameters, a third party's) finds ``grad_scale`` and ``found_inf`` as attributes,
   as torch's class sets them.
3. Of all others the gradients are divided in place, and ``step`` is called or not.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_
from torch.optim import Optimizer

from halfstep.update.grad_scaler.shared_decision import SharedDecision
from halfstep.update.optimizers.adapter import OptimizerAdapter
from halfstep.update.optimizers.fuse import is_fused
from halfstep.update.optimizers.gradients import (
    GradientCollector,
    Gradients,
    match_layouts,
)
from halfstep.update.optimizers.kernels import KERNELS
from halfstep.update.optimizers.norm import GradientNorm
from halfstep.update.readback import Number

_STOCK = tuple(KERNELS)


class OptimizerCall:
    """One optimizer of the drop-in, with what is kept for it between steps.

    Args:
        optimizer: An optimizer, or anything with ``param_groups`` and ``step``.

    Attributes:
        collector, norm: Its gradients and their norm.
        shared: What other ranks decide with.
        max_norm: Limit for the next step, or ``None``.
        clipped: Norm and limit of gradients that were clipped at once, until the next step.
        num_steps: Steps so far.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.collector = GradientCollector(optimizer)
        self.norm = GradientNorm()
        self.shared = SharedDecision(self.collector.all_parameters())
        self.max_norm: float | None = None
        self.clipped: tuple[Number, float] | None = None
        self.num_steps = 0
        self._adapter: OptimizerAdapter | None = None
        self._inspected: tuple[object, object] = None, None
        self._takes_grad_scaler = False

    @property
    def supports_scaling(self) -> bool:
        """Whether ``step`` reads ``grad_scale`` and ``found_inf`` of its optimizer.

        Stock optimizers say so in their groups: the flag stays set when a loaded state has
        unfused them.
        """
        if not getattr(self.optimizer, "_step_supports_amp_scaling", False):
            return False
        return is_fused(self.optimizer) if isinstance(self.optimizer, _STOCK) else True

    @property
    def takes_grad_scaler(self) -> bool:
        """Whether ``step`` is of the older kind that is passed the scaler itself."""
        if not getattr(self.optimizer, "_step_supports_amp_scaling", False):
            return False
        replaced, own = self.optimizer.__dict__.get("step"), type(self.optimizer).step
        if self._inspected[0] is not replaced or self._inspected[1] is not own:
            self._inspected = replaced, own  # reading a signature takes as long as a small step
            parameters = inspect.signature(self.optimizer.step).parameters
            self._takes_grad_scaler = "grad_scaler" in parameters
        return self._takes_grad_scaler

    def measure(self, gradients: Gradients) -> Number:
        """The norm of the gradients, over all ranks where they are sharded.

        Args:
            gradients: Collected.
        """
        if self.shared.is_sharded:
            return self.shared.norm(gradients)
        params, grads, are_dense = gradients
        return self.norm(grads, key=params, are_dense=are_dense)

    def take_grad_scale(self) -> Number | None:
        """A ``grad_scale`` that the user has set; torch's class multiplies it into its own."""
        if "grad_scale" not in self.optimizer.__dict__ or not self.supports_scaling:
            return None
        preset: Number | None = self.optimizer.__dict__.pop("grad_scale")
        return preset

    def clip_now(self, norm: Number, max_norm: float) -> None:
        """Clip unscaled gradients in place, as a loop without a scaler does.

        Args:
            norm: Of all gradients together, measured already.
            max_norm: Its limit.
        """
        if gradients := self.collector.collect().grads:
            total = torch.as_tensor(norm, dtype=torch.float32, device=gradients[0].device)
            clip_grads_with_norm_(self.collector.all_parameters(), max_norm, total)
        self.clipped = norm, max_norm

    def can_skip_itself(self, gradients: Gradients) -> bool:
        """Whether ``step`` can be called before anybody knows if the update may happen.

        Not while somebody counts the calls of a replaced ``step``, and not before all state of a
        stock optimizer exists: a skipped first step would leave memory that nobody wrote.
        """
        if not self.supports_scaling or not gradients.are_dense:
            return False
        if self._is_direct and self._stock().kernels_can_skip(gradients.params):
            return True
        if self.shared.is_sharded:
            return False  # torch takes no found_inf beside sharded parameters
        replaced = self.optimizer.__dict__.get("step")
        if replaced is not None and not hasattr(replaced, "_wrapped_by_lr_sched"):
            return False
        return not isinstance(self.optimizer, _STOCK) or self._has_state(gradients.params)

    def launch(
        self,
        gradients: Gradients,
        multiplier: Number,
        found_inf: Tensor,
        args: Sequence[Any],
        options: Mapping[str, Any],
    ) -> float | None:
        """Step undecided: the optimizer itself skips where `found_inf` is 1.

        Args:
            gradients: Dense ones, where `can_skip_itself` said yes.
            multiplier: What to divide by: 1.0, or a 0-d float32 tensor.
            found_inf: 0-d float32, 0.0 or 1.0.
            args, options: Of the user's call.

        Returns:
            What ``step`` returned.
        """
        params, grads, _ = gradients
        if self._is_direct and not _says_something(args, options):
            adapter = self._stock()
            if adapter.kernels_can_skip(params):
                returned: float | None = adapter.apply(gradients, multiplier, found_inf)
                return returned
        match_layouts(params, grads)
        scale = multiplier if isinstance(multiplier, Tensor) else None
        with _scaling_attributes(self.optimizer, scale, found_inf):
            stepped: float | None = self.optimizer.step(*args, **options)
        return stepped

    def divides_first(self, args: Sequence[Any], options: Mapping[str, Any]) -> bool:
        """Whether a decided step divides the gradients in place before it calls ``step``.

        Args:
            args, options: Of the user's call.

        Raises:
            BadValueError: ``step`` needs a closure, and the call has none.
        """
        if not args and isinstance(self.optimizer, Optimizer):
            self._stock()  # refuses an optimizer that needs a closure
        return not self._is_direct or _says_something(args, options) or not is_fused(self.optimizer)

    def apply(self, gradients: Gradients, multiplier: float) -> float | None:
        """Divide and step in the fused kernel, where `divides_first` said no."""
        returned: float | None = self._stock().apply(gradients, multiplier, None)
        return returned

    def step(
        self,
        gradients: Gradients,
        found_inf: Tensor,
        args: Sequence[Any],
        options: Mapping[str, Any],
    ) -> float | None:
        """Step on gradients that were divided already.

        Args:
            gradients: The divided ones.
            found_inf: 0-d float32, 0.0.
            args, options: Of the user's call.

        Returns:
            What ``step`` returned.
        """
        if not self.supports_scaling:
            return self.optimizer.step(*args, **options)  # type: ignore[no-any-return]
        if gradients.are_dense:
            match_layouts(gradients.params, gradients.grads)
        with _scaling_attributes(self.optimizer, None, found_inf):
            stepped: float | None = self.optimizer.step(*args, **options)
        return stepped

    @property
    def _is_direct(self) -> bool:
        return type(self.optimizer) in KERNELS

    def _stock(self) -> OptimizerAdapter:
        if self._adapter is None:
            self._adapter = OptimizerAdapter(self.optimizer, fuse=False)
        return self._adapter

    def _has_state(self, params: Sequence[Tensor]) -> bool:
        kernel = next(row for kind, row in KERNELS.items() if isinstance(self.optimizer, kind))
        wanted = set(map(id, params))
        state = self.optimizer.state
        return all(
            isinstance(state.get(p, {}).get(name), Tensor)
            for group in self.optimizer.param_groups
            for name in kernel.state_names(group)
            for p in group["params"]
            if id(p) in wanted
        )


def closure_of(args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """The closure of a call ``step(optimizer, *args, **options)``, or ``None``."""
    closure = options.get("closure", args[0] if args else None)
    return closure if callable(closure) else None


def _says_something(args: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Whether a call has any argument beside a closure that is ``None``."""
    if not args and not options:
        return False
    return any(a is not None for a in args) or any(
        name != "closure" or value is not None for name, value in options.items()
    )


@contextlib.contextmanager
def _scaling_attributes(
    optimizer: Optimizer, grad_scale: Tensor | None, found_inf: Tensor
) -> Iterator[None]:
    optimizer.grad_scale = grad_scale  # type: ignore[attr-defined]
    optimizer.found_inf = found_inf  # type: ignore[attr-defined]
    try:
        yield
    finally:
        optimizer.__dict__.pop("grad_scale", None)
        optimizer.__dict__.pop("found_inf", None)
