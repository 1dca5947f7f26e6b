"""torch's fused optimizer kernels, a row each, and the short road to them.

``optimizer.step()`` regroups all tensors and adds 1 to every step counter on its own at each
call: for 300 small tensors that is two thirds of its time. `KernelPlan` does that once and calls
the kernel with the lists it kept. A new fused optimizer is a new row of `KERNELS`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer
from torch.optim import optimizer as torch_optimizer

from halfstep.update.multiplier import divide_, in_float32_range

Group = Mapping[str, Any]
States = Sequence[list[Tensor]]

# CPU gradients from here on are divided block by block into a scratch buffer that stays in the
# cache, because the kernel would write the divided gradient back to memory (4 of 32 bytes).
_BLOCK = 1 << 20
_WORTH_BLOCKS = 1 << 17


@dataclass(frozen=True)
class Kernel:
    """How one optimizer class calls its fused kernel.

    Attributes:
        state_names: Group to the names of its per-parameter state, in the kernel's order.
        counts_steps: Whether state["step"] is counted.
        launch: Calls the kernel with (group, params, grads, states, steps, grad_scale, found_inf).
        plain_numbers: Group options that must be Python numbers for this road.
    """

    state_names: Callable[[Group], tuple[str, ...]]
    counts_steps: bool
    launch: Callable[
        [Group, list[Tensor], list[Tensor], States, list[Tensor], Tensor | None, Tensor | None],
        None,
    ]
    plain_numbers: tuple[str, ...] = ("lr", "weight_decay")


def _adam_state(group: Group) -> tuple[str, ...]:
    return ("exp_avg", "exp_avg_sq") + (("max_exp_avg_sq",) if group["amsgrad"] else ())


def _launch_adam(
    group: Group,
    params: list[Tensor],
    grads: list[Tensor],
    states: States,
    steps: list[Tensor],
    grad_scale: Tensor | None,
    found_inf: Tensor | None,
) -> None:
    kernel = torch._fused_adamw_ if group["decoupled_weight_decay"] else torch._fused_adam_
    kernel(
        params,
        grads,
        states[0],
        states[1],
        states[2] if group["amsgrad"] else [],
        steps,
        lr=group["lr"],
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        amsgrad=group["amsgrad"],
        maximize=group["maximize"],
        grad_scale=grad_scale,
        found_inf=found_inf,
    )


def _launch_sgd(
    group: Group,
    params: list[Tensor],
    grads: list[Tensor],
    states: States,
    steps: list[Tensor],
    grad_scale: Tensor | None,
    found_inf: Tensor | None,
) -> None:
    torch._fused_sgd_(
        params,
        grads,
        states[0] if states else [],
        weight_decay=group["weight_decay"],
        momentum=group["momentum"],
        lr=group["lr"],
        dampening=group["dampening"],
        nesterov=group["nesterov"],
        maximize=group["maximize"],
        is_first_step=False,
        grad_scale=grad_scale,
        found_inf=found_inf,
    )


def _launch_adagrad(
    group: Group,
    params: list[Tensor],
    grads: list[Tensor],
    states: States,
    steps: list[Tensor],
    grad_scale: Tensor | None,
    found_inf: Tensor | None,
) -> None:
    torch._fused_adagrad_(
        params,
        grads,
        states[0],
        steps,
        lr=group["lr"],
        lr_decay=group["lr_decay"],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        maximize=group["maximize"],
        grad_scale=grad_scale,
        found_inf=found_inf,
    )


_ADAM = Kernel(_adam_state, True, _launch_adam, ("lr", "weight_decay", "eps"))

KERNELS: dict[type[Optimizer], Kernel] = {
    Adam: _ADAM,
    AdamW: _ADAM,
    SGD: Kernel(lambda g: ("momentum_buffer",) if g["momentum"] else (), False, _launch_sgd),
    Adagrad: Kernel(lambda group: ("sum",), True, _launch_adagrad),
}


@dataclass
class _Block:
    """Pieces of large CPU tensors that fill the scratch buffer once, and the kernel's views.

    Attributes:
        pieces: Gradient index, first and last element of each piece.
        views: For the parameters and each kind of state, one view per piece.
        steps: The step counter of each piece.
    """

    pieces: list[tuple[int, int, int]] = field(default_factory=list)
    views: list[list[Tensor]] = field(default_factory=list)
    steps: list[Tensor] = field(default_factory=list)
    size: int = 0


class _GroupPlan:
    """The lists of one parameter group, kept between updates."""

    def __init__(
        self, kernel: Kernel, group: Group, params: list[Tensor], dicts: Sequence[dict[str, Any]]
    ) -> None:
        self.group = group
        self.names = kernel.state_names(group)
        self._kernel = kernel
        self._params = params
        self._states = [[state[name] for state in dicts] for name in self.names]
        self._steps: list[Tensor] = []
        self._step_buffer: Tensor | None = None
        if kernel.counts_steps:
            # all counters side by side, so that counting is one add; each state keeps a view
            self._step_buffer = torch.stack([state["step"] for state in dicts])
            self._steps = list(self._step_buffer.unbind(0))
            for state, view in zip(dicts, self._steps, strict=True):
                state["step"] = view
        self._float64 = params[0].dtype is torch.float64
        self._blocks: list[_Block] = []
        self._scratch = torch.empty(0)
        self._small = list(range(len(params)))
        if params[0].device.type == "cpu" and params[0].dtype is torch.float32:
            self._cut_large_tensors()

    def _cut_large_tensors(self) -> None:
        large = {
            i
            for i, p in enumerate(self._params)
            if p.numel() >= _WORTH_BLOCKS and p.is_contiguous()
        }
        self._small = [i for i in self._small if i not in large]
        for i in sorted(large):
            flat = [t.detach().view(-1) for t in (self._params[i], *(s[i] for s in self._states))]
            for start in range(0, flat[0].numel(), _BLOCK):
                stop = min(start + _BLOCK, flat[0].numel())
                self._add_piece(i, start, stop, [tensor[start:stop] for tensor in flat])

    def _add_piece(self, index: int, start: int, stop: int, views: list[Tensor]) -> None:
        if not self._blocks or self._blocks[-1].size + stop - start > _BLOCK:
            self._blocks.append(_Block(views=[[] for _ in views]))
        block = self._blocks[-1]
        block.pieces.append((index, start, stop))
        block.size += stop - start
        for kept, view in zip(block.views, views, strict=True):
            kept.append(view)
        if self._steps:
            block.steps.append(self._steps[index])

    def run(
        self, grads: list[Tensor], multiplier: float | Tensor, found_inf: Tensor | None
    ) -> None:
        if self._step_buffer is not None:
            self._step_buffer.add_(1 if found_inf is None else 1 - found_inf)
        if self._float64 and not isinstance(multiplier, Tensor):
            divide_(grads, multiplier)  # the kernels' float32 grad_scale would cost 29 bits
            multiplier = 1.0
        if isinstance(multiplier, Tensor):
            self._launch(list(range(len(grads))), grads, multiplier, found_inf)
            return
        if self._small:
            scale = None if multiplier == 1.0 else torch.tensor(multiplier, dtype=torch.float32)
            self._launch(self._small, grads, scale, None)
        if self._blocks:
            self._run_blocks(grads, multiplier)

    def _launch(
        self,
        indices: list[int],
        grads: list[Tensor],
        grad_scale: Tensor | None,
        found_inf: Tensor | None,
    ) -> None:
        lists = [self._params, grads, *self._states, self._steps]
        if len(indices) < len(grads):
            lists = [[items[i] for i in indices] if items else [] for items in lists]
        params, picked, *states, steps = lists
        self._kernel.launch(self.group, params, picked, states, steps, grad_scale, found_inf)

    def _run_blocks(self, grads: list[Tensor], multiplier: float) -> None:
        if not len(self._scratch):  # kept: fresh pages would cost as much as they save
            self._scratch = torch.empty(max(block.size for block in self._blocks))
        flat = {i: grads[i].view(-1) for block in self._blocks for i, _, _ in block.pieces}
        for block in reversed(self._blocks):  # the norm has just read the last gradients
            pieces = [flat[i][start:stop] for i, start, stop in block.pieces]
            if multiplier != 1.0:
                parts = self._scratch[: block.size].split([len(piece) for piece in pieces])
                for piece, part in zip(pieces, parts, strict=True):
                    torch.div(piece, multiplier, out=part)
                pieces = list(parts)
            params, *states = block.views
            self._kernel.launch(self.group, params, pieces, states, block.steps, None, None)


class KernelPlan:
    """Direct calls of the fused kernels for one optimizer and one list of parameters.

    Build it with `KernelPlan.build`; ask `is_current` before every `run`.
    """

    def __init__(self, optimizer: Optimizer, kernel: Kernel, params: list[Tensor]) -> None:
        self.params = params
        self.is_contiguous = all(map(Tensor.is_contiguous, params))
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
        self._tensors = list(chain.from_iterable(d.values() for d in self._state_dicts))

    @classmethod
    def build(cls, optimizer: Optimizer, params: list[Tensor]) -> KernelPlan | None:
        """A plan, or ``None`` where something forbids the short road.

        Forbidden: other classes than the rows of `KERNELS` (subclasses may override anything),
        step hooks, a replaced ``step``, tensor hyperparameters, capturable or differentiable
        groups, groups of mixed dtype or device, state that does not exist yet.
        """
        kernel = KERNELS.get(type(optimizer))
        if kernel is None or not _is_unobserved(optimizer):
            return None
        if not all(_is_plain(kernel, group) for group in optimizer.param_groups):
            return None
        wanted = set(map(id, params))
        for group in optimizer.param_groups:
            members = [p for p in group["params"] if id(p) in wanted]
            if len({(p.dtype, p.device) for p in members}) > 1:
                return None
            names = kernel.state_names(group) + (("step",) if kernel.counts_steps else ())
            if not all(_has_state(optimizer, p, names) for p in members):
                return None
        return cls(optimizer, kernel, params)

    def is_current(self, params: list[Tensor]) -> bool:
        """Whether nothing that the plan relies on was replaced since it was made."""
        optimizer = self._optimizer
        states = optimizer.state
        return (
            params is self.params
            and states is self._state
            and _is_unobserved(optimizer)
            and len(optimizer.param_groups) == len(self._param_groups)
            and all(map(operator.is_, optimizer.param_groups, self._param_groups))
            and len(states) == len(self._state_dicts)
            and all(map(operator.is_, states.values(), self._state_dicts))
            and all(map(operator.is_, self._state_tensors(), self._tensors))
            and all(
                _is_plain(self._kernel, plan.group)
                and self._kernel.state_names(plan.group) == plan.names
                for plan in self._groups
            )
        )

    def _state_tensors(self) -> chain[Any]:
        return chain.from_iterable(map(dict.values, self._state_dicts))

    def run(
        self, grads: list[Tensor], multiplier: float | Tensor, found_inf: Tensor | None
    ) -> None:
        """Divide by the multiplier and step.

        Args:
            grads: One per parameter, laid out as the parameters are.
            multiplier: A float once the host has decided, else a 0-d float32 tensor.
            found_inf: 0-d float32, with which the kernel itself holds; ``None`` once decided.
        """
        if not isinstance(multiplier, Tensor) and not in_float32_range(multiplier):
            divide_(grads, multiplier)
            multiplier = 1.0
        start = 0
        for plan, size in zip(self._groups, self._sizes, strict=True):
            plan.run(grads[start : start + size], multiplier, found_inf)
            start += size
        self._optimizer._opt_called = True  # type: ignore[attr-defined]  # a scheduler asks for it


def _is_unobserved(optimizer: Optimizer) -> bool:
    step = optimizer.__dict__.get("step")
    return (
        not optimizer._optimizer_step_pre_hooks
        and not optimizer._optimizer_step_post_hooks
        and not torch_optimizer._global_optimizer_pre_hooks
        and not torch_optimizer._global_optimizer_post_hooks
        and (step is None or hasattr(step, "_wrapped_by_lr_sched"))
    )


def _is_plain(kernel: Kernel, group: Group) -> bool:
    return (
        bool(group.get("fused"))
        and not group.get("capturable")
        and not group.get("differentiable")
        and all(type(group[name]) in (float, int) for name in kernel.plain_numbers)
        and all(type(beta) is float for beta in group.get("betas", ()))
    )


def _has_state(optimizer: Optimizer, p: Tensor, names: Sequence[str]) -> bool:
    state = optimizer.state.get(p, {})
    tensors = [state.get(name) for name in names]
    return all(isinstance(t, Tensor) and t.device == p.device for t in tensors) and all(
        t.dtype == p.dtype and t.stride() == p.stride()
        for t in tensors[: len(names) - (names[-1:] == ("step",))]
    )
