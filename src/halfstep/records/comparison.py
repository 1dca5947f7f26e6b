"""`Comparison`: two runs step by step, and the first step at which they are not the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from halfstep.records.floats import decode_floats, encode_floats
from halfstep.records.step import StepRecord

# In the order in which one explains the next: other data, another rate, another scale, ...
COMPARED = ("data", "batch", "lr", "loss_scale", "updated", "grad_norm", "loss", "checksum")
_SHOWN_AS = {"data": "other data (checksum of the batches)"}


@dataclass(frozen=True)
class Comparison:
    """What two sequences of steps have in common.

    Attributes:
        num_compared: Steps that both have.
        num_left, num_right: Steps of each.
        step: The first step that differs, ``None`` if none does.
        differences: Field to both values at that step, in the order of `COMPARED`.
        mean_loss_difference: Mean of ``|loss - loss|`` over the compared steps (NaN left out).
    """

    num_compared: int
    num_left: int
    num_right: int
    step: int | None
    differences: dict[str, tuple[Any, Any]]
    mean_loss_difference: float

    @property
    def is_equal(self) -> bool:
        """Whether no compared step differs and both have the same number of steps."""
        return self.step is None and self.num_left == self.num_right

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        data: dict[str, Any] = encode_floats(asdict(self))
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Comparison:
        """The inverse of `to_dict`."""
        pairs = {
            k: (decode_floats(a), decode_floats(b)) for k, (a, b) in data["differences"].items()
        }
        mean = decode_floats(data["mean_loss_difference"])
        return cls(**{**data, "differences": pairs, "mean_loss_difference": mean})

    def __str__(self) -> str:
        if self.step is None:
            if self.num_left != self.num_right:
                return (
                    f"equal in the {self.num_compared} steps that both have"
                    f" ({self.num_left} and {self.num_right} steps)"
                )
            return f"equal in all {self.num_compared} steps"
        field, (left, right) = next(iter(self.differences.items()))
        also = ", ".join(name for name in self.differences if name != field)
        by = _SHOWN_AS.get(field, field)
        text = f"step {self.step} differs first, by {by}: {_shown(left)} against {_shown(right)}"
        return f"{text} (also {also})" if also else text


def compare_steps(left: Sequence[StepRecord], right: Sequence[StepRecord]) -> Comparison:
    """Compare two runs by step number, to the bit.

    Fields that one of the two does not know (a checksum, a batch number) are left out. Batches are
    compared by their content where both know it, and by their number otherwise.
    """
    others = {step.step: step for step in right}
    pairs = [(step, others[step.step]) for step in left if step.step in others]
    gaps = [abs(a.loss - b.loss) for a, b in pairs if a.loss == a.loss and b.loss == b.loss]
    first: int | None = None
    differences: dict[str, tuple[Any, Any]] = {}
    for a, b in pairs:
        differences = _differences(a, b)
        if differences:
            first = a.step
            break
    return Comparison(
        num_compared=len(pairs),
        num_left=len(left),
        num_right=len(right),
        step=first,
        differences=differences,
        mean_loss_difference=sum(gaps) / len(gaps) if gaps else 0.0,
    )


def _differences(left: StepRecord, right: StepRecord) -> dict[str, tuple[Any, Any]]:
    found = {}
    knows_data = left.data is not None and right.data is not None
    for name in COMPARED:
        if name == "batch" and knows_data:
            continue
        a, b = getattr(left, name), getattr(right, name)
        known = a is not None and b is not None
        if known and encode_floats(a) != encode_floats(b):
            found[name] = (a, b)
    return found


def _shown(value: Any) -> str:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return repr(value) if isinstance(value, float) else str(value)
