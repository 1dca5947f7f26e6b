"""Short runs in each format, and what two FP32 seeds say about how much difference is noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from halfstep.numerics import FORMATS
from halfstep.precision import Policy
from halfstep.records import Cause, Equality, PassError, TrainingCurve
from halfstep.tools.doctor.causes.advice import FORMAT_NAMES
from halfstep.tools.doctor.causes.given import made
from halfstep.tools.doctor.runs.state_over_steps import StateWatch, state_causes
from halfstep.training import Recipe, fit

OTHER_SEED = "fp32, other seed"


def compare_runs(
    recipe: Recipe,
    passes: Sequence[PassError],
    policy: Callable[[str], Policy],
    *,
    steps: int,
    seed: int,
    device: torch.device,
    formats: Sequence[str] = ("bf16", "fp16"),
) -> tuple[Equality, list[Cause]]:
    """Train in each format with the same data, and in FP32 with another seed.

    Args:
        recipe: What to train.
        passes: Errors of the passes, for the record.
        policy: Makes the policy of a format.
        steps: Updates of each run; 0 makes none.
        seed: Of all runs but one.
        device: Where to run.
        formats: Beside FP32.

    Returns:
        The curves, and causes that the state of the runs shows.
    """
    if not steps:
        return Equality(tuple(passes), (), math.nan, {}), []
    watches: dict[str, StateWatch] = {}

    def run(name: str, format: str, seed: int) -> TrainingCurve:
        watch = watches[name] = StateWatch()
        found = fit(
            replace(recipe, model=watch.watched(recipe.model)),
            precision=policy(format),
            steps=steps,
            seed=seed,
            device=device,
            on_step=watch.note,
        )
        watch.finish()
        losses = tuple(step.loss for step in found.steps)
        return TrainingCurve(name, losses, found.num_skipped, found.status)

    curves = [run("fp32", "fp32", seed), run(OTHER_SEED, "fp32", seed + 1)]
    curves += [run(format, format, seed) for format in formats]
    gaps = {curve.name: _gap(curves[0], curve) for curve in curves[1:]}
    other = watches.pop(OTHER_SEED)
    causes = state_causes(watches, other, {name: FORMATS[name].eps for name in watches})
    return Equality(tuple(passes), tuple(curves), gaps.pop(OTHER_SEED), gaps), causes


def training_causes(equality: Equality) -> list[Cause]:
    """Formats whose run ends further from FP32 than another seed does.

    Args:
        equality: With runs.
    """
    return [
        made(
            "training_differs",
            "rounding",
            (name,),
            is_precision=True,
            evidence=f"mean loss difference {gap:.3g} to FP32, {equality.tolerance:.3g} between two"
            " FP32 seeds",
            explanation=f"{FORMAT_NAMES[name]} trains differently from FP32, by more than another"
            " seed does, though nothing is inf or NaN.",
            remedy="Look at the layers with the largest gradient error; keep them in FP32.",
        )
        for name, gap in equality.differences.items()
        if not equality.is_equal(name)
    ]


def _gap(left: TrainingCurve, right: TrainingCurve) -> float:
    """Mean difference of the losses over the second half; inf for a run that ended early."""
    if len(left.losses) != len(right.losses):
        return math.inf
    half = len(left.losses) // 2
    gaps = [abs(a - b) for a, b in zip(left.losses[half:], right.losses[half:], strict=True)]
    mean = sum(gaps) / len(gaps)
    return mean if math.isfinite(mean) else math.inf
