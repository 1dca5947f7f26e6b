"""torch's fused optimizer kernels, a row each. A new fused optimizer is a new row of `KERNELS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

from halfstep.update.optimizers.observers import stock_class

Group = Mapping[str, Any]
States = Sequence[list[Tensor]]
Call = Callable[[], object]


@dataclass(frozen=True)
class Kernel:
    """How one optimizer class calls its fused kernel.

    Attributes:
        state_names: Group to the names of its per-parameter state, in the kernel's order.
        counts_steps: Whether state["step"] is counted.
        prepare: Makes the call of the kernel from (group, params, grads, states, steps, grad_scale,
            found_inf); it runs when the result is called.
        plain_numbers: Group options that must be Python numbers for this road.
    """

    state_names: Callable[[Group], tuple[str, ...]]
    counts_steps: bool
    prepare: Callable[
        [Group, list[Tensor], list[Tensor], States, list[Tensor], Tensor | None, Tensor | None],
        Call,
    ]
    plain_numbers: tuple[str, ...] = ("weight_decay",)


def _adam_state(group: Group) -> tuple[str, ...]:
    return ("exp_avg", "exp_avg_sq") + (("max_exp_avg_sq",) if group["amsgrad"] else ())


def _prepare_adam(
    group: Group,
    params: list[Tensor],
    grads: list[Tensor],
    states: States,
    steps: list[Tensor],
    grad_scale: Tensor | None,
    found_inf: Tensor | None,
) -> Call:
    kernel = torch._fused_adamw_ if group["decoupled_weight_decay"] else torch._fused_adam_
    return partial(
        kernel,
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


def _prepare_sgd(
    group: Group,
    params: list[Tensor],
    grads: list[Tensor],
    states: States,
    steps: list[Tensor],
    grad_scale: Tensor | None,
    found_inf: Tensor | None,
) -> Call:
    return partial(
        torch._fused_sgd_,
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


def _prepare_adagrad(
    group: Group,
    params: list[Tensor],
    grads: list[Tensor],
    states: States,
    steps: list[Tensor],
    grad_scale: Tensor | None,
    found_inf: Tensor | None,
) -> Call:
    return partial(
        torch._fused_adagrad_,
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


_ADAM = Kernel(_adam_state, True, _prepare_adam, ("weight_decay", "eps"))

KERNELS: dict[type[Optimizer], Kernel] = {
    Adam: _ADAM,
    AdamW: _ADAM,
    SGD: Kernel(lambda g: ("momentum_buffer",) if g["momentum"] else (), False, _prepare_sgd),
    Adagrad: Kernel(lambda group: ("sum",), True, _prepare_adagrad),
}


def kernel_of(optimizer: Optimizer) -> Kernel | None:
    """The row of the class whose ``step`` this optimizer runs, or ``None``."""
    kind = stock_class(optimizer)
    return None if kind is None else KERNELS[kind]
