"""`veto=`: conditions of the user's that hold an update although its gradients are finite.

They see tensors on the device and answer with one, so that they join the decision without a wait.
A new ready-made condition goes here; any callable on `Facts` will do in a user's own code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from halfstep.records import BadTypeError, BadValueError
from halfstep.update.readback import filled

__all__ = ["Facts", "NormSpike", "norm_spike"]


@dataclass(frozen=True)
class Facts:
    """What a condition may look at; 0-d float64 tensors on the device of the gradients.

    Attributes:
        grad_norm: True 2-norm before clipping.
        loss: Mean loss of the window.
        loss_scale: What the window used.
        optimizer: Its name; a single one is called ``"optimizer"``.
    """

    grad_norm: Tensor
    loss: Tensor
    loss_scale: Tensor
    optimizer: str


Condition = Callable[[Facts], "Tensor | bool"]


class NormSpike:
    """Holds an update whose gradient norm is far above those before it; made by `norm_spike`."""

    __name__ = "norm_spike"

    def __init__(self, factor: float, decay: float, warmup: int, patience: int) -> None:
        self._factor, self._decay = factor, decay
        self._warmup, self._patience = warmup, patience
        self._keep([0.0, 0.0, 0.0], torch.device("cpu"))

    def __call__(self, facts: Facts) -> Tensor:
        """Whether to hold, a 0-d tensor of bool; nothing waits."""
        self._to(facts.grad_norm.device)
        # factor * mean < norm, updates >= warmup, in_a_row < patience: three tests in one
        limits = torch.stack([facts.grad_norm, *self._limits])
        return (self._state * self._signs < limits).all()

    def observe(self, facts: Facts, held: Tensor, updated: Tensor) -> None:
        """Learn from a step.

        Args:
            facts: As for the call.
            held: Whether this condition held it; 0-d tensor of bool.
            updated: Whether the update was made; 0-d tensor of bool.
        """
        self._to(facts.grad_norm.device)
        mean, updates, in_a_row = self._state.unbind()
        weight = (updates + 1).reciprocal().clamp(min=1 - self._decay)
        weight = torch.maximum(weight, in_a_row >= self._patience)  # a new level
        # a mean that moves towards itself stays as it is, to the bit
        mean.lerp_(torch.where(updated, facts.grad_norm, mean), weight)
        updates.add_(updated)
        in_a_row.add_(held).masked_fill_(updated, 0.0)

    def state_dict(self) -> dict[str, float]:
        """The running mean and counts.

        Syncs: yes.
        """
        mean, updates, in_a_row = self._state.tolist()
        return {"mean": mean, "updates": updates, "in_a_row": in_a_row}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restore what `state_dict` returned."""
        self._keep([state["mean"], state["updates"], state["in_a_row"]], self._state.device)

    def _to(self, device: torch.device) -> None:
        if self._state.device != device:
            self._keep(self._state.tolist(), device)

    def _keep(self, state: Sequence[float], device: torch.device) -> None:
        """Mean, updates and holds in a row side by side, and what they are compared with."""
        self._state = filled(state, device)
        self._signs = filled([self._factor, -1.0, 1.0], device)
        self._limits = filled([0.5 - self._warmup, self._patience], device).unbind()


def norm_spike(
    factor: float = 6.0, *, decay: float = 0.98, warmup: int = 20, patience: int = 10
) -> NormSpike:
    """A condition that holds an update whose gradient norm is `factor` times the running mean.

    One bad batch can throw a run back by thousands of steps though every number is finite;
    clipping only shortens that step. The mean is over committed updates, so that a spike does not
    raise it.

    Args:
        factor: More than 1.
        decay: Of the running mean, between 0 and 1.
        warmup: Committed updates before anything is held; norms fall fast at the start.
        patience: After so many holds in a row the norm is taken for the new level, and the mean
            starts from it: a condition must not stop a run for ever.

    Raises:
        BadValueError: A number outside of these.

    Syncs: no.

    Example:
        >>> import torch, halfstep as hs
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> engine = hs.Engine(model, optimizer, precision="fp32", veto=hs.veto.norm_spike(6))
    """
    if not factor > 1:
        raise BadValueError(f"factor must be > 1, got {factor}; it would hold ordinary updates.")
    if not 0 < decay < 1:
        raise BadValueError(f"decay must be between 0 and 1, got {decay}.")
    for name, value in (("warmup", warmup), ("patience", patience)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise BadValueError(f"{name} must be a whole number of at least 1, got {value!r}.")
    return NormSpike(factor, decay, warmup, patience)


def checked_conditions(veto: object) -> list[Condition]:
    """The conditions that a setting asks for: one callable, or a sequence of them."""
    found = [veto] if callable(veto) else veto
    if found == [norm_spike]:
        raise BadTypeError("veto got the function norm_spike; call it: hs.veto.norm_spike(6).")
    if not isinstance(found, Sequence) or isinstance(found, str):
        raise BadTypeError(
            "veto must be a callable on hs.veto.Facts, or a sequence of them, got"
            f" {type(veto).__name__}."
        )
    for condition in found:
        if not callable(condition):
            raise BadTypeError(f"a veto must be callable, got {type(condition).__name__}.")
    return list(found)


def name_of(condition: Condition) -> str:
    """What a condition is called in an outcome's reason."""
    return str(getattr(condition, "__name__", type(condition).__name__))


def ask(condition: Condition, facts: Facts) -> Tensor:
    """The condition's answer as a 0-d tensor of bool."""
    answer = condition(facts)
    if isinstance(answer, bool):
        return torch.full((), answer, dtype=torch.bool, device=facts.grad_norm.device)
    if not isinstance(answer, Tensor) or answer.numel() != 1:
        shape = f" of shape {tuple(answer.shape)}" if isinstance(answer, Tensor) else ""
        raise BadTypeError(
            f"the veto {name_of(condition)!r} must return a bool or a 0-d tensor, got"
            f" {type(answer).__name__}{shape}."
        )
    return answer.detach().reshape(()).to(facts.grad_norm.device).bool()


def learns(condition: Condition) -> bool:
    """Whether a condition wants to know how steps end."""
    return getattr(condition, "observe", None) is not None


def tell(condition: Condition, facts: Facts, held: Tensor, updated: Tensor) -> None:
    """Let a condition that learns know how the step ended."""
    observe: Any = getattr(condition, "observe", None)
    if observe is not None:
        observe(facts, held, updated)
