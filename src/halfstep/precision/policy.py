"""`Policy`: the format of a run and the autocast context that goes with it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from halfstep.numerics import FORMATS, Format
from halfstep.precision.hardware import choose_format
from halfstep.records import BadTypeError, BadValueError

_TRAINABLE = ("fp32", "bf16", "fp16")
_OTHER_NAMES = {
    **{name: name for name in _TRAINABLE},
    **dict.fromkeys(("float16", "half", "16", "16-mixed"), "fp16"),
    **dict.fromkeys(("bfloat16", "bf16-mixed"), "bf16"),
    **dict.fromkeys(("float32", "float", "32", "no"), "fp32"),
}


@dataclass(frozen=True)
class Policy:
    """Which format the matrix products and convolutions of a run use.

    Attributes:
        format: ``"fp32"``, ``"bf16"`` or ``"fp16"``.
        reason: Why, for the log.
    """

    format: str
    reason: str = "asked for"

    def __post_init__(self) -> None:
        if self.format not in _TRAINABLE:
            meant = _OTHER_NAMES.get(str(self.format).lower().removeprefix("torch."))
            hint = f"; did you mean {meant!r}?" if meant else "."
            raise BadValueError(
                f"precision must be 'auto', 'fp32', 'bf16' or 'fp16', got {self.format!r}{hint}"
            )

    @property
    def row(self) -> Format:
        """The format's numbers."""
        return FORMATS[self.format]

    def autocast(self, device_type: str) -> torch.autocast:
        """A fresh autocast context for one forward pass (or any number of them).

        Args:
            device_type: ``"cpu"``, ``"cuda"``.
        """
        if self.format == "fp32":
            return torch.autocast(device_type, enabled=False)
        return torch.autocast(device_type, dtype=self.row.dtype)


def as_policy(precision: str | Policy, device: torch.device) -> Policy:
    """The policy that a setting asks for; ``"auto"`` asks the hardware.

    Raises:
        BadValueError: An unknown name.
        BadTypeError: Neither a name nor a policy.
    """
    if isinstance(precision, Policy):
        return precision
    if isinstance(precision, torch.dtype):
        return Policy(str(precision))  # refused, with the name that was meant
    if not isinstance(precision, str):
        raise BadTypeError(
            "precision must be 'auto', 'fp32', 'bf16', 'fp16' or a Policy, got"
            f" {type(precision).__name__}."
        )
    return Policy(*choose_format(device)) if precision == "auto" else Policy(precision)
