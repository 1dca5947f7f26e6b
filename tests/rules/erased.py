"""The reference: a program with its loss scaling erased, in plain float64 without torch.amp."""

from __future__ import annotations

import math
from collections.abc import Sequence

from programs import Op

Vector = tuple[float, ...]


class Erased:
    """Runs operations; `scale` is the identity and `unscale_` does nothing.

    Args:
        weights: Optimizer to the weights of its model, a linear map to one number.
        max_norm: Of every clip.
    """

    def __init__(self, weights: dict[str, Vector], max_norm: float) -> None:
        self.weights = dict(weights)
        self.gradients: dict[str, Vector | None] = dict.fromkeys(weights)
        self.momentum: dict[str, Vector | None] = dict.fromkeys(weights)
        self.clocks = dict.fromkeys(weights, 0)
        self.averages: dict[str, tuple[Vector, int]] = {o: (w, 0) for o, w in weights.items()}
        self._bad = dict.fromkeys(weights, False)
        self._applied = dict.fromkeys(weights, True)  # what a first look at it would say
        self._began = dict.fromkeys(weights, False)
        self._waiting = dict.fromkeys(weights, False)
        self._ahead: list[tuple[str, str, Vector]] = []
        self._max_norm = max_norm

    def run(
        self, op: Op, batch: Sequence[Vector], finite: bool = True, comes: bool = False
    ) -> None:
        """One operation; `comes` says that a step follows before gradients are cleared."""
        kind, *who = op
        if kind == "backward":
            self._backward(who[0], batch[int(who[1])], finite)
        elif kind in ("zero", "zero if ran"):
            self._zero(who[0])
        elif kind in ("clip", "clip both"):
            self._clip(who or list(self.weights))
        elif kind in ("step", "direct step"):
            self._step(who[-1])
        elif kind.startswith(("schedule", "average")):
            self._follow(kind.split()[0], who[0], comes)

    def _zero(self, o: str) -> None:
        self.gradients[o], self._waiting[o] = None, False

    def _backward(self, o: str, x: Vector, finite: bool) -> None:
        if self.gradients[o] is None:
            self._bad[o] = False
        if self._bad[o] and not self._waiting[o]:  # a held window is dropped at the next backward
            self.gradients[o], self._bad[o] = None, False
        output = sum(w * v for w, v in zip(self.weights[o], x, strict=True))
        old = self.gradients[o] or (0.0,) * len(x)
        self.gradients[o] = tuple(g + output * v for g, v in zip(old, x, strict=True))
        self._bad[o] |= not finite
        self._waiting[o] = True

    def _clip(self, optimizers: Sequence[str]) -> None:
        with_gradients = {o: g for o in optimizers if (g := self.gradients[o]) is not None}
        norm = math.sqrt(sum(v * v for g in with_gradients.values() for v in g))
        factor = min(1.0, self._max_norm / (norm + 1e-6))
        self.gradients.update({o: tuple(v * factor for v in g) for o, g in with_gradients.items()})

    def _step(self, o: str) -> None:
        gradient = self.gradients[o]
        self._applied[o], self._waiting[o] = not self._bad[o], False
        self._began[o] = True
        if self._applied[o] and gradient is not None:
            old = self.momentum[o] or (0.0,) * len(gradient)
            moved = tuple(0.5 * m + g for m, g in zip(old, gradient, strict=True))
            self.momentum[o] = moved
            self.weights[o] = tuple(
                w - 0.25 * m for w, m in zip(self.weights[o], moved, strict=True)
            )
        self._settle(o)

    def _settle(self, o: str) -> None:
        for kind, optimizer, weights in [a for a in self._ahead if a[1] == o]:
            self._move(kind, optimizer, weights)
        self._ahead = [a for a in self._ahead if a[1] != o]

    def _follow(self, kind: str, o: str, comes: bool) -> None:
        if self._waiting[o] and comes:
            self._ahead.append((kind, o, self.weights[o]))
        else:
            self._move(kind, o, self.weights[o])

    def _move(self, kind: str, o: str, weights: Vector) -> None:
        if not self._applied[o]:
            return
        if kind == "schedule":
            self.clocks[o] += self._began[o]
            return
        mean, n = self.averages[o]
        moved = tuple(m + (w - m) / (n + 1) for m, w in zip(mean, weights, strict=True))
        self.averages[o] = (moved, n + 1)
