"""The reference: a program with its loss scaling erased, in plain float64 without torch.amp.

`scale` is the identity and `unscale_` does nothing; a clip acts on the true gradients; any step
applies if and only if its optimizer's accumulated gradient is finite; a held window's gradients
are dropped at the next backward; schedule and average advance if and only if the update that they
follow (or that comes next, where they go ahead of it) was applied.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from programs import Op

Vector = tuple[float, ...]


@dataclass
class Erased:
    """One optimizer, its model (a linear map to one number), schedule and average."""

    weights: Vector
    gradient: Vector | None = None
    momentum: Vector | None = None
    clock: int = 0
    clocks: tuple[int, ...] = ()  # as each step saw it
    average: tuple[Vector, int] = ((), 0)
    applied: bool = True  # what a first look at it would say
    began: bool = False
    waiting: bool = False
    ahead: list[tuple[str, Vector]] = field(default_factory=list)

    def zero(self) -> None:
        self.gradient, self.waiting = None, False

    def backward(self, x: Vector, finite: bool) -> None:
        if not self.waiting and self.gradient and not all(map(math.isfinite, self.gradient)):
            self.gradient = None  # a held window is dropped
        output = sum(w * v for w, v in zip(self.weights, x, strict=True)) if finite else math.inf
        old = self.gradient or (0.0,) * len(x)
        self.gradient = tuple(g + output * v for g, v in zip(old, x, strict=True))
        self.waiting = True

    def step(self) -> None:
        if self.gradient is not None:  # else there is nothing to commit and nothing to hold
            self.applied, self.began = all(map(math.isfinite, self.gradient)), True
        self.waiting = False
        if self.applied and self.gradient is not None:
            self.clocks += (self.clock,)
            old = self.momentum or (0.0,) * len(self.weights)
            self.momentum = tuple(0.5 * m + g for m, g in zip(old, self.gradient, strict=True))
            moved = zip(self.weights, self.momentum, strict=True)
            self.weights = tuple(w - 0.25 * m for w, m in moved)
        for kind, weights in self.ahead:
            self.move(kind, weights)
        self.ahead = []

    def move(self, kind: str, weights: Vector) -> None:
        if self.applied and kind == "schedule":
            self.clock += self.began
        elif self.applied:
            mean, n = self.average
            pairs = zip(mean or weights, weights, strict=True)
            self.average = tuple(m + (w - m) / (n + 1) for m, w in pairs), n + 1


def clip(parts: Sequence[Erased], max_norm: float) -> float:
    """Clip by the norm of the true gradients; returns it."""
    parts = [part for part in parts if part.gradient is not None]
    norm = math.sqrt(sum(v * v for part in parts for v in part.gradient or ()))
    for part in parts:
        factor = min(max_norm / (norm + 1e-6), 1.0) if not math.isnan(norm) else math.nan
        part.gradient = tuple(v * factor for v in part.gradient or ())
    return norm


def run(parts: dict[str, Erased], op: Op, x: Vector, finite: bool, comes: bool) -> None:
    """One operation; `comes` says that a step follows before gradients are cleared."""
    kind, part = op[0].split()[0], parts.get(op[-1])
    if op[0].endswith("backward"):
        parts[op[1]].backward(x, finite)
    elif part is not None and kind == "zero":
        part.zero()
    elif part is not None and op[0] in ("step", "direct step"):
        part.step()
    elif part is not None and kind in ("schedule", "average"):
        if part.waiting and comes and not op[0].endswith("if ran"):
            part.ahead.append((kind, part.weights))
        else:
            part.move(kind, part.weights)
