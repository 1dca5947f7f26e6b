"""The steps of a run: train, note, validate, save, stop."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from halfstep.records import RunRecord, ScaleCollapse, StepRecord, Validation
from halfstep.training.checkpoint.folder import RunFolder
from halfstep.training.engine.engine import Engine
from halfstep.training.run.build import state_checksum
from halfstep.training.run.data.windows import Windows
from halfstep.training.run.recipe import Recipe
from halfstep.training.run.scale_trend import ScaleTrend
from halfstep.training.run.validation import ValidationPlan, validate
from halfstep.training.run.zero_gradients import ZeroGradients
from halfstep.update import StepOutcome
from halfstep.update.readback import Readback

logger = logging.getLogger("halfstep")


@dataclass
class Loop:
    """One run of `fit` from the step it is at; the attributes are those of `fit`."""

    engine: Engine
    recipe: Recipe
    data: Windows
    run: RunRecord
    checkpoints: RunFolder | None
    plan: ValidationPlan
    checksums: bool
    on_step: Callable[[RunRecord, StepRecord], None] | None
    _trend: ScaleTrend = field(default_factory=ScaleTrend)
    # read one step late, when the host need not wait any more
    _pending: list[tuple[StepOutcome, Readback | None, str]] = field(default_factory=list)
    _has_saved: bool = False

    def __post_init__(self) -> None:
        # 0, unless the position was left out on purpose
        self._offset = self.data.position - len(self.run.steps)

    def train(self, zero_gradients: bool) -> None:
        """Make the steps that are left, fewer if the plan says stop.

        Args:
            zero_gradients: As for `fit`.

        Raises:
            ScaleCollapse: Every attempt is in the record then.
        """
        for model in self.engine.models.values():
            if not model.training:
                model.train()  # pretrained models come in eval mode
        zeros = ZeroGradients(self.engine.models.values()) if zero_gradients else None
        self._started = time.perf_counter() - self.run.duration_s
        try:
            self._make_steps(zeros)
        except ScaleCollapse as collapse:
            if self._pending:
                self._note_oldest()
            if collapse.record is not None:
                self._note(collapse.record, self.data.checksum)
            raise
        finally:
            if zeros is not None:
                zeros.remove()
            while self._pending:
                self._note_oldest()

    def last_validation(self) -> dict[str, float]:
        """Metrics after the last step."""
        made = self.run.validations
        if not made or made[-1].step != len(self.run.steps):
            if self.plan.every is None:
                return validate(self.recipe, self.engine)
            self._validate()
        return dict(self.run.validations[-1].metrics)

    def _make_steps(self, zeros: ZeroGradients | None) -> None:
        first, last = len(self.run.steps) + 1, self.run.settings["steps"]
        if self._stops_after(first - 1):
            return  # saved after the step at which this run stopped
        for step in range(first, last + 1):
            outcome = self.engine.train_step(self.data.next(), self.recipe.loss_fn)
            seen = self.data.checksum
            self._pending.append((outcome, zeros.take() if zeros else None, seen))
            is_save_due = self.checkpoints is not None and self.checkpoints.is_due(step)
            is_validation_due = self.plan.is_due(step)
            asks = self.plan.asks_after(step)
            reads_all = is_save_due or is_validation_due or asks or self.checksums
            while len(self._pending) > (0 if reads_all else 1):
                self._note_oldest()
            if is_validation_due:
                self._validate()
            if is_save_due:
                self._save()
            if step < last and self._stops_after(step):
                logger.info("stopped after step %d of %d", step, last)
                return

    def _stops_after(self, step: int) -> bool:
        if not step or self.plan.stop is None or not self.plan.asks_after(step):
            return False
        return bool(self.plan.stop(self.run))

    def _note_oldest(self) -> None:
        outcome, share, seen = self._pending.pop(0)
        self._note(outcome.record, seen, share)

    def _note(self, record: StepRecord, seen: str, share: Readback | None = None) -> None:
        record = replace(
            record,
            zero_gradient_fraction=share.wait()[0] if share and record.updated else None,
            data=seen,
            batch=(record.step + self._offset - 1) * self.run.settings["accumulate"],
            checksum=state_checksum(self.engine) if self.checksums else None,
        )
        self.run.steps.append(record)
        self.run.duration_s = time.perf_counter() - self._started
        if record.diagnosis is not None:
            logger.warning("step %d skipped: %s", record.step, record.diagnosis)
        if message := self._trend.note(record):
            logger.warning("%s", message)
        if self.on_step is not None:
            self.on_step(self.run, record)

    def _validate(self) -> None:
        """Validate after the last step, and keep the weights if they are the best so far."""
        before = time.perf_counter()
        found = Validation(len(self.run.steps), validate(self.recipe, self.engine))
        self.plan.check_metrics(found.metrics)
        self.run.validations.append(found)
        best = self.plan.keep_best
        is_best = best is not None and best.of(self.run.validations) is found
        if is_best and self.checkpoints is not None:
            self._warn_once_about_data()
            state = self.data.batches.state()
            self.checkpoints.save_best(self.engine, self.run, self.data.position, state)
        self._started += time.perf_counter() - before

    def _save(self) -> None:
        assert self.checkpoints is not None
        self._warn_once_about_data()
        state = self.data.batches.state()
        self.checkpoints.save(self.engine, self.run, self.data.position, state)

    def _warn_once_about_data(self) -> None:
        if not self._has_saved and (reason := self.data.batches.why_not_resumable()):
            logger.warning("%s", reason)
        self._has_saved = True
