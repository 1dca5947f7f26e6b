"""The short road to the fused kernels.

``optimizer.step()`` regroups all tensors and adds 1 to every step counter on its own at each
call: for 300 small tensors that is two thirds of its time. A plan does that once and calls the
kernel with the lists it kept.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from halfstep.update.optimizers.gradients import divide_, in_float32_range, lies_as
from halfstep.update.optimizers.kernels import Group, Kernel, kernel_of
from halfstep.update.optimizers.launch import Launch
from halfstep.update.optimizers.observers import is_observed
from halfstep.update.ranks.shards import local_of


class _GroupPlan:
    """The lists of one parameter group, kept between updates."""

    def __init__(
        self, kernel: Kernel, group: Group, params: list[Tensor], dicts: Sequence[dict[str, Any]]
    ) -> None:
        self.group = group
        self.names = kernel.state_names(group)
        self._kernel = kernel
        # Last ones first: the norm has just read their gradients, which are still in the cache.
        params, dicts = params[::-1], dicts[::-1]
        self._params = params = list(map(local_of, params))
        self._states = [[local_of(state[name]) for state in dicts] for name in self.names]
        self._steps: list[Tensor] = []
        self._step_buffer: Tensor | None = None
        if kernel.counts_steps:
            # all counters side by side, so that counting is one add; each state keeps a view
            self._step_buffer = torch.stack([state["step"] for state in dicts])
            self._steps = list(self._step_buffer.unbind(0))
            for state, view in zip(dicts, self._steps, strict=True):
                state["step"] = view
        self._float64 = params[0].dtype is torch.float64
        self._grad_scale = torch.ones((), dtype=torch.float32, device=params[0].device)
        self._filled_with = 1.0

    def prepare(
        self, grads: list[Tensor], multiplier: float | Tensor, found_inf: Tensor | None
    ) -> list[Launch]:
        """The launches of one update, with all that they need allocated."""
        launches: list[Launch] = []
        if (buffer := self._step_buffer) is not None:
            counted = 1 if found_inf is None else 1 - found_inf
            launches.append(Launch(partial(buffer.add_, counted), partial(buffer.sub_, counted)))
        grad_scale: Tensor | None = None
        if isinstance(multiplier, Tensor):
            grad_scale = multiplier
        elif self._float64:
            divide_(grads, multiplier)  # the kernels' float32 grad_scale would cost 29 bits
        elif multiplier != 1.0:
            if multiplier != self._filled_with:
                self._grad_scale.fill_(multiplier)
                self._filled_with = multiplier
            grad_scale = self._grad_scale
        kernel = self._kernel.prepare(
            self.group, self._params, grads[::-1], self._states, self._steps, grad_scale, found_inf
        )
        launches.append(Launch(kernel))
        return launches


class KernelPlan:
    """Direct calls of the fused kernels for one optimizer and one list of parameters.

    Build it with `KernelPlan.build`; ask `is_current` before every `prepare`.

    Attributes:
        params: The parameters it updates.
        is_contiguous: Whether all of them are.
        is_uniform: Whether they are on one device and none is float64.
    """

    def __init__(self, optimizer: Optimizer, kernel: Kernel, params: list[Tensor]) -> None:
        self.params = params
        parts = list(map(local_of, params))
        self.is_contiguous = all(map(Tensor.is_contiguous, parts))
        self.is_uniform = len({p.device for p in parts}) == 1 and all(
            p.dtype is not torch.float64 for p in parts
        )
        self._optimizer = optimizer
        self._kernel = kernel
        self._state = optimizer.state
        self._param_groups = list(optimizer.param_groups)
        wanted = set(map(id, params))
        self._groups: list[_GroupPlan] = []
        self._sizes: list[int] = []
        for group in optimizer.param_groups:
            members = [p for p in group["params"] if id(p) in wanted]
            if members:
                dicts = [optimizer.state.get(p, {}) for p in members]
                self._groups.append(_GroupPlan(kernel, group, members, dicts))
                self._sizes.append(len(members))
        self._state_dicts = list(optimizer.state.values())
        self._state_values = [state.values() for state in self._state_dicts]  # views: they follow
        self._tensors = list(chain.from_iterable(self._state_values))

    @classmethod
    def build(cls, optimizer: Optimizer, params: list[Tensor]) -> KernelPlan | None:
        """A plan, or ``None`` where something forbids the short road.

        Forbidden: other classes than the rows of `KERNELS`, and subclasses with a step or state of
        their own; step hooks, a replaced ``step``, tensor hyperparameters that the kernels do not
        take, differentiable groups, groups of mixed dtype or device, state that does not exist yet.
        """
        kernel = kernel_of(optimizer)
        if kernel is None or is_observed(optimizer) or not has_fused_state(optimizer, params):
            return None
        return cls(optimizer, kernel, params)

    def is_current(self, params: list[Tensor]) -> bool:
        """Whether nothing that the plan relies on was replaced since it was made."""
        optimizer = self._optimizer
        states = optimizer.state
        return (
            params is self.params
            and states is self._state
            and not is_observed(optimizer)
            and len(optimizer.param_groups) == len(self._param_groups)
            and all(map(operator.is_, optimizer.param_groups, self._param_groups))
            and len(states) == len(self._state_dicts)
            and all(map(operator.is_, states.values(), self._state_dicts))
            and all(map(operator.is_, chain.from_iterable(self._state_values), self._tensors))
            and all(
                _is_plain(self._kernel, plan.group)
                and self._kernel.state_names(plan.group) == plan.names
                for plan in self._groups
            )
        )

    def prepare(
        self, grads: list[Tensor], multiplier: float | Tensor, found_inf: Tensor | None
    ) -> list[Launch]:
        """The launches that divide by the multiplier and step.

        Args:
            grads: One per parameter, laid out as the parameters are.
            multiplier: A float once the host has decided, else a 0-d float32 tensor.
            found_inf: 0-d float32, with which the kernel itself skips; ``None`` once decided.
        """
        if not isinstance(multiplier, Tensor) and not in_float32_range(multiplier):
            divide_(grads, multiplier)
            multiplier = 1.0
        start = 0
        launches: list[Launch] = []
        for plan, size in zip(self._groups, self._sizes, strict=True):
            launches += plan.prepare(grads[start : start + size], multiplier, found_inf)
            start += size
        self._optimizer._opt_called = True  # type: ignore[attr-defined]  # a scheduler asks for it
        return launches


def has_fused_state(optimizer: Optimizer, params: Sequence[Tensor]) -> bool:
    """Whether the fused kernels can run with what an optimizer holds.

    Args:
        optimizer: Of a stock class, by `stock_class`.
        params: Those that are to be stepped.
    """
    kernel = kernel_of(optimizer)
    assert kernel is not None
    if not all(_is_plain(kernel, group) for group in optimizer.param_groups):
        return False
    wanted = set(map(id, params))
    for group in optimizer.param_groups:
        members = [p for p in group["params"] if id(p) in wanted]
        if len({(p.dtype, p.device) for p in members}) > 1:
            return False
        names = kernel.state_names(group) + (("step",) if kernel.counts_steps else ())
        if not all(_has_state(optimizer, p, names) for p in members):
            return False
    return True


def _is_plain(kernel: Kernel, group: Group) -> bool:
    return (
        bool(group.get("fused"))
        and not group.get("differentiable")
        and all(type(group[name]) in (float, int) for name in kernel.plain_numbers)
        and all(type(beta) is float for beta in group.get("betas", ()))
        and _takes_rate(group)
    )


def _takes_rate(group: Group) -> bool:
    """Whether the kernels take the learning rate: a number, or what a pointer to float32 reads."""
    rate = group["lr"]
    if not isinstance(rate, Tensor):
        return type(rate) in (float, int)
    where = {p.device for p in group["params"]}
    return (
        rate.dim() == 0
        and rate.dtype is torch.float32
        and not rate.requires_grad
        and where == {rate.device}
    )


def _has_state(optimizer: Optimizer, p: Tensor, names: Sequence[str]) -> bool:
    state = optimizer.state.get(p, {})
    p = local_of(p)
    tensors = [local_of(t) if isinstance(t := state.get(n), Tensor) else t for n in names]
    return all(isinstance(t, Tensor) and t.device == p.device for t in tensors) and all(
        t.dtype == p.dtype and t.shape == p.shape and lies_as(t, p)
        for t in tensors[: len(names) - (names[-1:] == ("step",))]
    )
