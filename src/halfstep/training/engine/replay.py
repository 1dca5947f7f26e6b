"""Running a skipped window again: nothing has moved, so it fails again, under a tracer."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from halfstep.precision import Policy
from halfstep.records import ScaleCollapse
from halfstep.records.window_diagnosis import Verdict, WindowDiagnosis
from halfstep.tracing import BadOp, find_first_bad_op
from halfstep.training.followers.buffers import BufferRollback
from halfstep.training.rng import rng_state, set_rng_state
from halfstep.training.window.loss import LossSum
from halfstep.update.loss_scale.base import promote
from halfstep.update.optimizers.norm import GradientNorm
from halfstep.update.ranks.ranks import ONE, Ranks

logger = logging.getLogger("halfstep")

_STEP = 4.0  # between the scales that are tried, downwards
_SMALLEST = 2.0**-40
_MOST_SAMPLES = 8  # that are named


@dataclass
class Replay:
    """Everything that a window was made of.

    Attributes:
        models, policy, device_type: As in the engine.
        argument: What `loss_fn` gets beside a batch.
        parameters: Those of the optimizer; their gradients are dropped afterwards.
        loss_fn: Called again: its side effects happen twice.
        batches: The window.
        rng: State of the generators before the window.
        buffers: Module buffers from before the window.
        min_scale: The lowest loss scale that the run may use; ``None`` for a scale without a floor.
        ranks: Those that train together. Each replays its own batches on the bare models, without
            any exchange, and the first one that finds something bad is named.
    """

    models: Sequence[nn.Module]
    argument: Any
    policy: Policy
    device_type: str
    parameters: Sequence[Tensor]
    loss_fn: Callable[[Any, Any], Tensor | LossSum]
    batches: Sequence[Any]
    rng: dict[str, Any]
    buffers: list[BufferRollback]
    min_scale: float | None = None
    ranks: Ranks = ONE

    @classmethod
    def of(cls, **settings: Any) -> Replay:
        """A replay of the window that is about to begin; takes the attributes it cannot save."""
        buffers = _remembered(settings["models"])
        return cls(rng=rng_state(), buffers=buffers, **settings)

    def explain(self, collapse: ScaleCollapse, nominal: float) -> ScaleCollapse:
        """The same error with a diagnosis of its last window."""
        record = collapse.record
        if record is None:
            return collapse
        record = replace(record, diagnosis=self.diagnose(record.loss_scale, nominal))
        return ScaleCollapse(collapse.num_skips, collapse.scales, collapse.parameters, record)

    def diagnose(self, scale: float, nominal: float) -> WindowDiagnosis | None:
        """Find the first bad op, then the largest lower scale at which the window is finite.

        Args:
            scale: Loss scale of the window.
            nominal: What its losses were divided by in backward.

        Returns:
            ``None``, with a log line, if the replay itself failed: the skip was decided already,
            and a run must not end because it could not be explained.
        """
        found = None
        try:
            found = self._diagnose(scale, nominal)
        except Exception as error:
            logger.warning("the replay of a skipped window failed: %s", error, exc_info=True)
        if not self.ranks.are_several:
            return found
        every = enumerate(self.ranks.gather(found))
        blamed = ((rank, each) for rank, each in every if each and each.verdict != "not_reproduced")
        rank, first = next(blamed, (None, found))
        return first and replace(first, rank=rank)

    def _diagnose(self, scale: float, nominal: float) -> WindowDiagnosis:
        after = rng_state()
        buffers_after = _remembered(self.models)
        try:
            bad = find_first_bad_op(self.models, lambda: self._results(scale, nominal))
            if bad is None:
                return _result("not_reproduced", None, scale, None)
            if (bad_input := self._bad_input()) is not None:
                name, samples = bad_input
                found = _result("bad_batch", bad, scale, None)
                return replace(found, bad_input=name, bad_samples=samples)
            finite_at = self._largest_finite_scale(scale, nominal)
            verdict: Verdict = "never_finite" if finite_at is None else "scale_searching"
            if finite_at is not None and self.min_scale is not None and finite_at < self.min_scale:
                verdict = "loss_too_large"
            return replace(_result(verdict, bad, scale, finite_at), min_scale=self.min_scale)
        finally:
            self._clean_up()
            for buffers in buffers_after:
                buffers.restore()
            set_rng_state(after)

    def _run(self, scale: float, nominal: float) -> float | Tensor:
        """Forward and backward of the whole window; returns the gradient norm."""
        grads = self._results(scale, nominal)[len(self.batches) :]
        return GradientNorm()(grads) if grads else 0.0

    def _results(self, scale: float, nominal: float) -> list[Tensor]:
        """Forward and backward of the whole window; returns the losses, then the gradients."""
        self._clean_up()
        set_rng_state(self.rng)
        losses = []
        for batch in self.batches:
            with self.policy.autocast(self.device_type):
                loss = self.loss_fn(self.argument, batch)
            total = loss.total if isinstance(loss, LossSum) else loss
            losses.append(total.detach())
            with self.policy.recompute(self.device_type):
                torch.autograd.backward(
                    promote(total).reshape(()) / nominal * scale, inputs=self._inputs()
                )
        return losses + [p.grad for p in self.parameters if p.grad is not None]

    def _largest_finite_scale(self, scale: float, nominal: float) -> float | None:
        scale /= _STEP
        while scale >= _SMALLEST:
            if math.isfinite(float(self._run(scale, nominal))):
                is_allowed = self.min_scale is None or scale >= self.min_scale
                return scale if is_allowed else self._refined(scale, nominal)
            scale /= _STEP
        return None

    def _refined(self, scale: float, nominal: float) -> float:
        """The largest power of two: it says by how much the loss is too large."""
        twice = 2 * scale
        return twice if math.isfinite(float(self._run(twice, nominal))) else scale

    def _bad_input(self) -> tuple[str, tuple[int, ...]] | None:
        """The first part of the batches that is not finite, with the samples that are not."""
        for number, batch in enumerate(self.batches):
            parts, _ = pytree.tree_flatten_with_path(batch)
            for path, leaf in parts:
                if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
                    continue
                bad = ~torch.isfinite(leaf.detach())
                if not bool(bad.any()):
                    continue
                which = f"micro-batch {number}, " if len(self.batches) > 1 else ""
                rows = bad.reshape(len(bad), -1).any(1).nonzero() if bad.dim() else bad[:0]
                samples = tuple(int(row) for row in rows.flatten()[:_MOST_SAMPLES])
                return f"{which}batch{pytree.keystr(path)}", samples
        return None

    def _inputs(self) -> list[Tensor]:
        return [p for p in self.parameters if p.requires_grad]

    def _clean_up(self) -> None:
        for p in self.parameters:
            p.grad = None
        for buffers in self.buffers:
            buffers.restore()


def _remembered(models: Sequence[nn.Module]) -> list[BufferRollback]:
    found = [BufferRollback(model) for model in models]
    for buffers in found:
        buffers.remember()
    return found


def _result(
    verdict: Verdict, bad: BadOp | None, scale: float, finite_at: float | None
) -> WindowDiagnosis:
    op = bad.record if bad is not None else None
    return WindowDiagnosis(
        verdict=verdict,
        op=op.op if op else "",
        module=op.module if op else "",
        phase=op.phase if op else "",
        dtype=op.dtype if op else "",
        shape=op.shape if op else (),
        largest_input=bad.largest_input if bad else 0.0,
        finite_fraction=op.finite_fraction if op else 1.0,
        scale=scale,
        finite_at_scale=finite_at,
        buffers_restored=True,
    )
