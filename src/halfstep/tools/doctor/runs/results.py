"""What a user has after a pass (outputs, loss, gradients), and how far that is from FP32."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from halfstep.numerics import Format
from halfstep.precision import Policy
from halfstep.tools.doctor.runs.one_batch import OneBatch
from halfstep.tools.doctor.runs.pass_errors import sample_error
from halfstep.tools.doctor.runs.passes import Pass
from halfstep.tracing.lineage import sample

LOSS = "the loss"
GRADIENTS = "all gradients"
_STEPS = 16  # times eps
_MUCH = 0.05  # share of the gradients' squared norm, or squared error, at which one matters
_NOISE = 0.05  # relative: where FP32 itself is this uncertain, a format cannot be judged


@dataclass(frozen=True)
class Results:
    """What one pass left, without its trace.

    Attributes:
        outputs: Samples of the model's results.
        loss: Over its divisor.
        gradients: Parameter name to true gradient, ``None`` where there is none.
    """

    outputs: Sequence[Tensor]
    loss: float
    gradients: Mapping[str, Tensor | None]

    @property
    def is_finite(self) -> bool:
        """Whether the loss and all gradients are."""
        known = (g for g in self.gradients.values() if g is not None)
        return math.isfinite(self.loss) and all(bool(torch.isfinite(g).all()) for g in known)


def tolerance(format: Format) -> float:
    """The error of what matters that is more than rounding: 16 eps (1.6 % in FP16, 12 % in BF16).

    Args:
        format: Of the pass.
    """
    return _STEPS * format.eps


def results_of(found: Pass) -> Results:
    """The results of a traced pass.

    Args:
        found: The pass.
    """
    return Results(found.outputs, found.loss, found.gradients)


def run_for_results(
    subject: OneBatch, policy: Policy, loss_scale: float = 1.0, inside: Any = None
) -> Results:
    """Forward and backward without a trace.

    Args:
        subject: Model and batch.
        policy: Of the forward.
        loss_scale: Of the backward.
        inside: A context to run the forward in.
    """
    ends = subject.run(policy, loss_scale, inside=inside)
    unit = loss_scale * ends.divisor / ends.nominal
    gradients = {
        n: None if p.grad is None else p.grad.detach() / unit for n, p in subject.parameters.items()
    }
    outputs = [sample(output) for output in ends.outputs]
    subject.reset()
    return Results(outputs, float(ends.loss) / ends.divisor, gradients)


def errors(low: Results, fp32: Results) -> dict[str, float]:
    """Relative error of each result: ``output 0``, the loss, all gradients, each that matters.

    Args:
        low: The results.
        fp32: Those of FP32.
    """
    found = {LOSS: abs(low.loss - fp32.loss) / abs(fp32.loss) if fp32.loss else 0.0}
    if len(low.outputs) == len(fp32.outputs):
        pairs = zip(low.outputs, fp32.outputs, strict=True)
        found |= {f"output {n}": sample_error(a, b) for n, (a, b) in enumerate(pairs)}
    squares: dict[str, tuple[float, float]] = {}
    for name, wanted in fp32.gradients.items():
        if wanted is not None:
            got = low.gradients.get(name)
            gap = wanted.float() if got is None else got.float() - wanted.float()
            squares[name] = float(gap.norm()) ** 2, float(wanted.float().norm()) ** 2
    total_gap = sum(gap for gap, _ in squares.values())
    total = sum(size for _, size in squares.values())
    found[GRADIENTS] = _relative(total_gap, total)
    for name, (error, size) in squares.items():
        share = size / total if total else 0.0
        if share > _MUCH or error > _MUCH * total_gap:
            found[f"gradient {name}"] = _relative(error, size)
    return {name: math.inf if error != error else error for name, error in found.items()}


def wrong_results(
    low: Results, fp32: Results, format: Format, noise: Callable[[], Mapping[str, float]]
) -> dict[str, float]:
    """Results further from FP32 than rounding explains, with their errors.

    Args:
        low: The results.
        fp32: Those of FP32.
        format: Of the pass.
        noise: How uncertain each of them is in FP32 itself; asked only where something is wrong.
    """
    limit = tolerance(format)
    wrong = {name: e for name, e in errors(low, fp32).items() if e > limit and name != LOSS}
    if not math.isfinite(low.loss):
        wrong[LOSS] = math.inf
    if not wrong:
        return {}
    uncertain = noise()
    return {name: e for name, e in wrong.items() if uncertain.get(name, 0.0) < _NOISE}


def noise_of_fp32(subject: OneBatch, policy: Policy, fp32: Results) -> dict[str, float]:
    """How far FP32 is from FP32 whose products are rounded in another way.

    Args:
        subject: Model and batch.
        policy: Of the FP32 pass.
        fp32: Its results.
    """
    with OtherRounding(torch.float32, 2.0**-24):
        other = run_for_results(subject, policy)
    return errors(other, fp32) | {
        f"gradient {name}": sample_error(sample(g), sample(wanted))
        for name, wanted in fp32.gradients.items()
        if wanted is not None and (g := other.gradients[name]) is not None
    }


class OtherRounding(TorchDispatchMode):
    """Moves each result of a product, as another order of its sums would.

    Args:
        dtype: Of the results that are moved; what an island computes in FP32 stays.
        relative: By how much at most.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()  # type: ignore[no-untyped-call]

    def __init__(self, dtype: torch.dtype | None, relative: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._dtype = dtype
        self._relative = relative

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        if name in ("mm", "addmm", "bmm", "baddbmm", "convolution", "mkldnn_convolution") and (
            result.dtype is self._dtype
        ):
            place = torch.arange(result.numel(), device=result.device, dtype=torch.float32)
            jitter = place.mul_(12.9898).sin_().mul_(self._relative).add_(1.0)
            result.mul_(jitter.view(result.shape))
        return result


def _relative(gap: float, size: float) -> float:
    if not math.isfinite(gap):
        return math.inf
    return math.sqrt(gap / size) if size else 0.0
