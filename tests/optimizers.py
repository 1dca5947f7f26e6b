"""One table of optimizers; every shared test of the update runs over it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class SignMomentum(Optimizer):
    """What a user might write: plain Python, state of its own, no foreach, no fused."""

    def __init__(self, params: Iterable[Tensor], lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                momentum.lerp_(p.grad, 0.1)
                p.sub_(momentum, alpha=group["lr"])


Make = Callable[..., Optimizer]


@dataclass(frozen=True)
class Row:
    """An optimizer and the options of its implementations."""

    make: Make
    variants: tuple[str, ...]


def _options(variant: str) -> dict[str, Any]:
    return {
        "default": {},
        "fused": {"fused": True},
        "foreach": {"foreach": True},
        "loop": {"foreach": False},
    }[variant]


_ALL = ("default", "fused", "foreach", "loop")
OPTIMIZERS: dict[str, Row] = {
    "adamw": Row(lambda p, **k: torch.optim.AdamW(p, lr=1e-2, **k), _ALL),
    "adam": Row(lambda p, **k: torch.optim.Adam(p, lr=1e-2, weight_decay=0.01, **k), _ALL),
    "amsgrad": Row(lambda p, **k: torch.optim.Adam(p, lr=1e-2, amsgrad=True, **k), _ALL),
    "sgd": Row(lambda p, **k: torch.optim.SGD(p, lr=0.1, **k), _ALL),
    "momentum": Row(lambda p, **k: torch.optim.SGD(p, lr=0.1, momentum=0.9, **k), _ALL),
    "nesterov": Row(
        lambda p, **k: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, **k), _ALL
    ),
    "adagrad": Row(lambda p, **k: torch.optim.Adagrad(p, lr=0.1, **k), _ALL),
    "rmsprop": Row(
        lambda p, **k: torch.optim.RMSprop(p, lr=1e-2, **k), ("default", "foreach", "loop")
    ),
    "adafactor": Row(lambda p, **k: torch.optim.Adafactor(p, lr=1e-2, **k), ("default", "loop")),
    "written": Row(lambda p, **k: SignMomentum(p, lr=0.1), ("default",)),
}
CASES = [(name, variant) for name, row in OPTIMIZERS.items() for variant in row.variants]
FUSED_CASES = [case for case in CASES if case[1] == "fused"]


def make_optimizer(case: tuple[str, str], params: Iterable[Tensor]) -> Optimizer:
    name, variant = case
    return OPTIMIZERS[name].make(list(params), **_options(variant))


def make_reference(case: tuple[str, str], params: Iterable[Tensor]) -> Optimizer:
    """torch's plain loop, for float64 parameters."""
    row = OPTIMIZERS[case[0]]
    return row.make(list(params), **(_options("loop") if "loop" in row.variants else {}))
