"""The runs of the batch, traced."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from halfstep.precision import Policy
from halfstep.records import OpRecord, PassRecord
from halfstep.records.trace import LayerRecord
from halfstep.tools.doctor.runs.one_batch import OneBatch
from halfstep.tools.doctor.runs.products import gpu_products
from halfstep.tracing.capture import Call, Capture
from halfstep.tracing.first_bad_op import BadOp, described
from halfstep.tracing.layers import LayerMagnitudes
from halfstep.tracing.lineage import Lineage, sample
from halfstep.tracing.producer import Producer, bad_starts, first_producer, producers

INIT_SCALE = 2.0**16
_LOWEST = -64  # exponent of the smallest loss scale that is tried


@dataclass
class Pass:
    """One traced run.

    Attributes:
        name: ``"fp32"``, ``"bf16"``, ``"fp16"``, ``"fp16 scaled"``.
        policy: Of the forward.
        loss_scale: Of the backward.
        loss: Over its divisor.
        loss_dtype: As the loss function returned it.
        loss_is_vector: Whether it had a dimension (one element) instead of none.
        gradients: Parameter name to true gradient, ``None`` where there is none.
        ops: All ops.
        lineage: Where their inputs came from, with samples.
        layers: Results of modules and gradients that came back to them.
        outputs: Samples of the model's results.
        ends: Indices of what matters: loss first, then the parameters' gradients.
        gradient_ends: Parameter name to the index of its gradient.
        output_ends: Indices of the model's results; ``None`` for one that no op made.
        bad_buffers: Names of buffers that are finite before the run and not after it.
        bad: The op that broke it.
        producer: The same, as found.
    """

    name: str
    policy: Policy
    loss_scale: float
    loss: float
    loss_dtype: torch.dtype
    loss_is_vector: bool
    gradients: dict[str, Tensor | None]
    ops: Sequence[OpRecord]
    lineage: Lineage
    layers: list[LayerRecord]
    outputs: list[Tensor]
    ends: list[int]
    gradient_ends: dict[str, int]
    output_ends: list[int | None]
    bad_buffers: list[str]
    bad: BadOp | None = None
    producer: Producer | None = field(default=None, repr=False)

    @property
    def grad_norm(self) -> float:
        """Of the true gradients, in float64."""
        squares = [
            float(g.double().square().sum()) for g in self.gradients.values() if g is not None
        ]
        return math.sqrt(math.fsum(squares)) if all(map(math.isfinite, squares)) else math.nan

    @property
    def is_finite(self) -> bool:
        """Whether the loss and all gradients are."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)

    def record(self) -> PassRecord:
        """As plain data."""
        values = [g for g in self.gradients.values() if g is not None]
        count = sum(g.numel() for g in values)
        zeros = sum(int((g == 0).sum()) for g in values)
        return PassRecord(
            name=self.name,
            format=self.policy.format,
            loss_scale=self.loss_scale,
            loss=self.loss,
            grad_norm=self.grad_norm,
            zero_gradient_fraction=zeros / count if count else 0.0,
            num_ops=len(self.ops),
            first_bad=self.bad.record if self.bad is not None else None,
            layers=tuple(self.layers),
        )


def trace_pass(subject: OneBatch, name: str, policy: Policy, loss_scale: float = 1.0) -> Pass:
    """Run the batch once under the tracer; where something breaks, once more to look closely.

    Args:
        subject: Model and batch.
        name: Of the pass.
        policy: Of the forward.
        loss_scale: Of the backward.

    Syncs: yes.
    """
    layers = LayerMagnitudes(backward=True, count=True)
    finite_before = _finite_buffers(subject)
    lineage = Lineage(subject.model, subject.leaves(), keep_samples=True, on_result=layers.note)
    with gpu_products(policy, subject.device), lineage:
        ends = subject.run(policy, loss_scale, lineage.mark_scaled)
    parameters = subject.parameters
    unit = loss_scale * ends.divisor / ends.nominal
    gradients = {n: p.grad for n, p in parameters.items()}
    gradient_ends = {
        n: position
        for n, g in gradients.items()
        if g is not None and (position := lineage.origin(g).position) is not None
    }
    loss_end = lineage.origin(ends.loss).position
    found = Pass(
        name=name,
        policy=policy,
        loss_scale=loss_scale,
        loss=float(ends.loss) / ends.divisor,
        loss_dtype=ends.loss.dtype,
        loss_is_vector=ends.loss.dim() > 0,
        gradients={n: None if g is None else g.detach() / unit for n, g in gradients.items()},
        ops=lineage.read().ops,
        lineage=lineage,
        layers=layers.read(),
        outputs=[sample(output) for output in ends.outputs],
        ends=[] if loss_end is None else [loss_end],
        gradient_ends=gradient_ends,
        output_ends=[lineage.origin(output).position for output in ends.outputs],
        bad_buffers=sorted(finite_before - _finite_buffers(subject)),
    )
    _find_producer(subject, found)
    subject.reset()
    return found


def capture(subject: OneBatch, found: Pass, position: int) -> Call | None:
    """An op of a pass with copies of its inputs, from one more run.

    Args:
        subject: Model and batch.
        found: The pass.
        position: Index of a result of the op.
    """
    walk = Capture(found.lineage.seen[position].first)
    with gpu_products(found.policy, subject.device), walk:
        subject.run(found.policy, found.loss_scale)
    subject.reset()
    return walk.call


def largest_finite_scale(subject: OneBatch, policy: Policy, below: float) -> float | None:
    """The largest power of two under `below` at which loss and gradients are finite.

    Args:
        subject: Model and batch.
        policy: Of the forward.
        below: A power of two at which they are not.

    Returns:
        ``None`` if none down to 2^-64 is.
    """

    def is_finite(exponent: int) -> bool:
        ends = subject.run(policy, 2.0**exponent)
        gradients = [p.grad for p in subject.parameters.values() if p.grad is not None]
        finite = bool(torch.isfinite(ends.loss).all()) and all(
            bool(torch.isfinite(g).all()) for g in gradients
        )
        subject.reset()
        return finite

    bad, good, step = round(math.log2(below)), None, 1
    while good is None and bad > _LOWEST:  # most searches end near where they begin
        exponent = max(bad - step, _LOWEST)
        if is_finite(exponent):
            good = exponent
        else:
            bad, step = exponent, step * 2
    while good is not None and bad - good > 1:
        middle = (bad + good) // 2
        if is_finite(middle):
            good = middle
        else:
            bad = middle
    return None if good is None else 2.0**good


def _find_producer(subject: OneBatch, found: Pass) -> None:
    """Look closely at what was not finite, if the loss or a gradient is among it."""
    bad_gradients = [
        n for n, g in found.gradients.items() if g is not None and not bool(torch.isfinite(g).all())
    ]
    if math.isfinite(found.loss) and not bad_gradients:
        return
    ends = [] if math.isfinite(found.loss) else list(found.ends)
    named = (found.gradient_ends.get(name) for name in reversed(bad_gradients))
    ends += [end for end in named if end is not None]
    examine = bad_starts(found.ops, found.lineage)
    close = Lineage(subject.model, subject.leaves(), examine=examine)
    with gpu_products(found.policy, subject.device), close:
        subject.run(found.policy, found.loss_scale)
    producer = first_producer(producers(close), ends)
    if producer is not None:
        found.producer = producer
        found.bad = described(producer, found.ops, close)


def _finite_buffers(subject: OneBatch) -> set[str]:
    return {
        name
        for name, b in subject.model.named_buffers()
        if b.is_floating_point() and bool(torch.isfinite(b).all())
    }
