"""`StepOutcome`: the explicit result of one step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from halfstep.records import StepRecord, WindowDiagnosis
from halfstep.update.readback import Readback


class StepOutcome:
    """What one `Engine.step` did. Looking at any field makes the host wait for that step.

    On a CPU, and with optimizers that cannot skip by themselves, everything is known at once. With
    a fused optimizer on an accelerator the fields are read from a pinned copy when first asked
    for, so a loop that looks at every tenth outcome waits every tenth step.

    It has no truth value: ``if outcome:`` would hide whether "it ran" or "it exists" was meant.
    Ask `updated` or `skipped`.

    A copy, and a pickle for another process, is of the settled outcome.
    """

    __slots__ = ("_error", "_lost", "_make_record", "_record", "_wait")

    def __init__(
        self, make_record: Callable[[], StepRecord], wait: Callable[[], object] | None = None
    ) -> None:
        self._make_record: Callable[[], StepRecord] | None = make_record
        self._wait = wait
        self._record: StepRecord | None = None
        self._error: BaseException | None = None
        self._lost: tuple[list[str], Readback] | None = None

    def settle(self) -> None:
        """Wait for the step and commit what follows from it."""
        if self._wait is not None:
            self._wait()  # Ctrl-C here leaves the step open, to be committed by the next look
            self._wait = None
        make, self._make_record = self._make_record, None  # it holds the window and the optimizer
        if make is not None:
            try:
                self._record = make()
            except BaseException as error:
                self._error = error  # the step was committed all the same, and only once
                raise

    @property
    def record(self) -> StepRecord:
        """All fields as plain data."""
        self.settle()
        if self._error is not None:
            raise self._error
        assert self._record is not None
        if self._lost is not None:
            (names, shares), self._lost = self._lost, None
            if self._record.updated:
                lost = dict(zip(names, shares.wait(), strict=True))
                self._record = dataclasses.replace(self._record, lost_updates=lost)
        return self._record

    @property
    def scalars(self) -> dict[str, float]:
        """All numbers in one flat dict, for loggers and JSON; see `StepRecord.scalars`."""
        return self.record.scalars

    def attach(self, diagnosis: WindowDiagnosis | None) -> None:
        """Put what a replay found into the record."""
        self._record = dataclasses.replace(self.record, diagnosis=diagnosis)

    def attach_lost_updates(self, names: list[str], shares: Readback) -> None:
        """Put the shares of weights that did not move into the record, once it is looked at."""
        self._lost = names, shares

    @property
    def lost_updates(self) -> dict[str, float] | None:
        """With ``lost_updates=True``, parameter name to the share of it that did not move.

        Of the weights that had a gradient; ``None`` after a skip.
        """
        return self.record.lost_updates

    @property
    def diagnosis(self) -> WindowDiagnosis | None:
        """What a replay of the skipped window found, with ``diagnose="on_skip"``."""
        return self.record.diagnosis

    @property
    def fallback(self) -> str | None:
        """Format that the run goes on in, if this step's collapse made it fall back."""
        return self.record.fallback

    @property
    def step(self) -> int:
        """Attempts so far, this one included."""
        return self.record.step

    @property
    def updated(self) -> bool:
        """Whether the parameters moved."""
        return self.record.updated

    @property
    def skipped(self) -> bool:
        """Whether nothing moved."""
        return self.record.skipped

    @property
    def reason(self) -> str | None:
        """Why nothing moved, ``None`` after an update."""
        return self.record.reason

    @property
    def loss(self) -> float:
        """Mean loss of the window."""
        return self.record.loss

    @property
    def divisor(self) -> float | None:
        """What the window's loss sum was divided by; ``None`` for mean losses."""
        return self.record.divisor

    @property
    def metrics(self) -> dict[str, float]:
        """The window's extra sums over the divisor."""
        return self.record.metrics

    @property
    def grad_norm(self) -> float:
        """True 2-norm before clipping."""
        return self.record.grad_norm

    @property
    def clip_coef(self) -> float:
        """Factor applied by clipping, at most 1."""
        return self.record.clip_coef

    @property
    def loss_scale(self) -> float:
        """Scale of this window."""
        return self.record.loss_scale

    @property
    def next_loss_scale(self) -> float:
        """Scale of the next window."""
        return self.record.next_loss_scale

    @property
    def lr(self) -> float:
        """Learning rate of this update, of the first parameter group; ``record.lr`` has all."""
        return self.record.lr[0]

    @property
    def per_optimizer(self) -> dict[str, StepRecord]:
        """Each optimizer's own record, by name; a single one is called ``"optimizer"``."""
        return self.record.per_optimizer or {"optimizer": self.record}

    @property
    def consumed(self) -> float:
        """Divisor units of all committed updates."""
        return self.record.consumed

    def __reduce__(self) -> tuple[object, ...]:
        return _finished, (self.record,)

    def __bool__(self) -> bool:
        raise TypeError("a StepOutcome has no truth value; ask outcome.updated or outcome.skipped.")

    def __str__(self) -> str:
        return str(self.record)

    def __repr__(self) -> str:
        return f"StepOutcome({self.record!r})"


def _finished(record: StepRecord) -> StepOutcome:
    return StepOutcome(lambda: record)
