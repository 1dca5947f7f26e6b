"""Every error that halfstep raises on purpose.

Each is also the built-in that Python users expect (`ValueError` for a value, `TypeError` for a
type, `RuntimeError` for the order of calls), so `except ValueError` keeps working, and the command
line can tell our sentences (exit code 2, no traceback) from an error in the user's own code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from halfstep.records.step import StepRecord


class HalfstepError(Exception):
    """Base of all errors raised by halfstep; its text is one or two sentences with the remedy."""


class BadValueError(HalfstepError, ValueError):
    """A value is outside what the setting allows."""


class BadTypeError(HalfstepError, TypeError):
    """An argument has a type that would be silently wrong if it were guessed at."""


class CallOrderError(HalfstepError, RuntimeError):
    """A method was called where the order of a training step does not allow it."""


class RefusedOpError(HalfstepError, RuntimeError):
    """An op was called that the precision policy refuses, as CUDA's autocast would."""


class UnsupportedTorchError(HalfstepError, ImportError):
    """The installed torch lacks something that halfstep stands on."""


class PeerFailed(HalfstepError, RuntimeError):  # noqa: N818 - what happened, not what is wrong here
    """Another process of a run has failed, so that this one cannot go on.

    Attributes:
        rank: The one that failed; ``None`` where it is gone without a word.
    """

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.rank)


class RecipeError(HalfstepError, ValueError):
    """A recipe could not be found, imported or used."""


class NonFiniteGradientError(HalfstepError, ArithmeticError):
    """A window produced a non-finite gradient and the user asked to stop there.

    Attributes:
        parameters: Names of the parameters whose gradient is not finite, in model order.
    """

    def __init__(self, message: str, parameters: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.parameters = tuple(parameters)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.parameters)


class ScaleCollapse(HalfstepError, RuntimeError):  # noqa: N818 - the name users meet in logs
    """Too many updates in a row were skipped: the run would never move again.

    Attributes:
        num_skips: Skipped updates in a row.
        scales: The loss scale at each of the last skips, oldest first.
        parameters: Names of parameters whose gradient was not finite at the last skip.
        record: What the last attempt did, where an engine made it; with ``diagnose="on_skip"`` its
            diagnosis is a part of the text.
    """

    def __init__(
        self,
        num_skips: int,
        scales: Sequence[float] = (),
        parameters: Sequence[str] = (),
        record: StepRecord | None = None,
    ) -> None:
        self.num_skips = num_skips
        self.record = record
        self.scales = tuple(scales)
        self.parameters = tuple(parameters)
        super().__init__(self._explain())

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.num_skips, self.scales, self.parameters, self.record)

    def _explain(self) -> str:
        text = f"{self.num_skips} updates in a row were skipped because of non-finite gradients"
        if len(set(self.scales)) > 1:
            text += f", while the loss scale went from {self.scales[0]:g} to {self.scales[-1]:g}"
        elif self.scales:
            text += f" at loss scale {self.scales[-1]:g}"
        text += "."
        if self.parameters:
            shown = ", ".join(self.parameters[:3])
            more = len(self.parameters) - 3
            text += f" Non-finite gradient in {shown}" + (f" and {more} more." if more > 0 else ".")
        if self.record is not None and self.record.diagnosis is not None:
            text += f" Replayed: {self.record.diagnosis}."
        text += (
            " Look at the batch first (NaN or inf in inputs or targets), then at the weights and"
            " the learning rate (one step that is too large makes NaN for ever)"
        )
        if not self.scales or self.scales[-1] == self.scales[0] == 1.0:
            return text + "."
        return text + (
            ", then run the same batch in FP32: if it is finite there, keep the layer that"
            " overflows in FP32 or train in BF16. A smaller scale does not help a model that makes"
            " NaN at any scale."
        )
