"""The seven symptoms people report, as checks that run."""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from halfstep.precision import Policy, choose_format
from halfstep.records import (
    BadValueError,
    Cause,
    GradientRange,
    HalfstepError,
    Symptom,
)
from halfstep.tools.doctor.examination import Examination
from halfstep.tools.doctor.runs.lost_updates import TriedUpdate
from halfstep.tools.doctor.runs.passes import INIT_SCALE
from halfstep.tools.resume import verify_resume
from halfstep.training import fit

LARGEST_FP16 = 65504.0
_CONSTANT = 1e30  # beyond it lie masks of the dtype's own limit (`finfo.min`), no activations
_ROUNDS = 5
_STEPS = 12


@dataclass(frozen=True)
class Findings:
    """What the checks draw on.

    Attributes:
        found: Model, batch and passes.
        range: Of the gradients; ``None`` where FP32 is not finite.
        update: One update on trial.
        causes: Found so far.
        policy: Makes the policy of a format.
        max_norm: To which the user clips; ``None`` without.
        seed: Of runs.
    """

    found: Examination
    range: GradientRange | None
    update: TriedUpdate
    causes: Sequence[Cause]
    policy: Callable[[str], Policy]
    max_norm: float | None
    seed: int


Check = Callable[[Findings], Symptom]


def clipped_gradients(f: Findings) -> Symptom:
    """Updates near 0 because clipping was meant for gradients of another size."""
    name, title = "clipped-gradients", "clipped gradients are near 0"
    norm = f.found.passes["fp32"].grad_norm
    scaled = f.found.passes.get("fp16 scaled")
    if f.max_norm is None:
        return Symptom(name, title, None, "no --max-norm was given", "")
    coef = min(1.0, f.max_norm / (norm + 1e-6))
    scale = scaled.loss_scale if scaled is not None else INIT_SCALE
    early = min(1.0, f.max_norm / (norm * scale + 1e-6))
    evidence = (
        f"gradient norm {norm:.3g}, max_norm {f.max_norm:g}: clipping multiplies by {coef:.3g};"
        f" clipping before unscaling would multiply by {early:.3g}"
    )
    remedy = "max_norm is far below the norm of this model's gradients: raise it."
    return Symptom(name, title, coef < 1e-3, evidence, remedy if coef < 1e-3 else "")


def schedule_ahead(f: Findings) -> Symptom:
    """A learning rate that moves although the update was skipped."""
    name, title = "schedule-ahead", "the schedule is ahead of the updates"
    recipe = f.found.subject.recipe
    if recipe.schedule is None:
        return Symptom(name, title, False, "the recipe has no schedule", "")
    run = fit(recipe, precision=f.policy("fp16"), steps=_STEPS, seed=f.seed)
    moved = [
        before.step
        for before, after in zip(run.steps, run.steps[1:], strict=False)
        if before.skipped and before.lr != after.lr
    ]
    evidence = f"{run.num_skipped} of {len(run.steps)} steps were skipped"
    evidence += f"; the rate moved after steps {moved}" if moved else "; the rate waited for each"
    remedy = "Give the schedule to the Engine, and step no scheduler elsewhere."
    return Symptom(name, title, bool(moved), evidence, remedy if moved else "")


def activations_overflow(f: Findings) -> Symptom:
    """Activations that BF16 holds and FP16 does not."""
    name, title = "activations-overflow", "activations are too large for FP16"
    low = f.found.passes.get("bf16") or f.found.passes.get("fp16")
    beside = f.found.beside.get(low.name) if low is not None else None
    if low is None or beside is None:
        return Symptom(name, title, None, "there is no finished 16-bit pass to look at", "")
    halves = [
        (beside.differences[op.index].reference_largest, op)
        for op in low.ops
        if op.phase == "forward" and op.dtype in ("float16", "bfloat16")
        and op.index in beside.differences
        and beside.differences[op.index].reference_largest < _CONSTANT
    ]  # fmt: skip
    if not halves:
        return Symptom(name, title, False, "no op of the forward pass runs in 16 bits", "")
    largest, op = max(halves, key=lambda pair: pair[0])
    headroom = math.log2(LARGEST_FP16 / largest) if largest else math.inf
    side = "below" if headroom >= 0 else "beyond"
    evidence = (
        f"largest 16-bit activation {largest:.4g}, {abs(headroom):.1f} bits {side} 65504:"
        f" {op.place}"
    )
    fp16 = f.found.passes.get("fp16")
    is_right = fp16 is not None and fp16.is_finite and not f.found.wrong(fp16)
    if largest <= LARGEST_FP16 or is_right:
        return Symptom(name, title, False, evidence, "")
    evidence = f"{largest:.4g} is {-headroom:.1f} bits beyond 65504: {op.place}"
    remedy = f"Stay in BF16, or keep {op.module or 'that part of the loss'} in FP32."
    return Symptom(name, title, True, evidence, remedy)


def frozen_parameters(f: Findings) -> Symptom:
    """A healthy loss with weights that do not move: underflow, no gradient, endless skips."""
    name, title = "frozen-parameters", "the loss is healthy and parameters do not move"
    fp32, scaled = f.found.passes["fp32"], f.found.passes.get("fp16 scaled")
    facts = []
    nothing = [n for n, g in fp32.gradients.items() if g is None]
    if nothing:
        facts.append(f"no gradient at all: {_some(nothing)}")
    if zero := f.update.still_zero:
        facts.append(f"gradient 0 in FP32 too: {_some(zero)} (after an update as well)")
    if scaled is not None:
        gradients = {n: g for n, g in scaled.gradients.items() if g is not None}
        known = {n for n, g in fp32.gradients.items() if g is not None and bool(g.any())}
        gone = [n for n, g in gradients.items() if n in known and not bool(g.any())]
        if gone:
            facts.append(f"gradient underflows to 0 in FP16: {_some(gone)}")
        if not scaled.is_finite:
            facts.append("FP16 skips every update: not finite at any loss scale from 1 on")
    lost = [row.name for row in f.update.lost if row.is_lost]
    if lost:
        facts.append(f"updates too small to change the weights: {_some(lost)}")
    explained = any(cause.severity == "error" for cause in f.causes)
    remedies = ["The causes above say why."] if explained else []
    if nothing:
        remedies.append(".grad is None: the loss does not use these.")
    if zero:
        remedies.append("A gradient of 0: nothing that the loss reads depends on these.")
    remedy = " ".join(remedies)
    evidence = "; ".join(facts) or "every parameter has a gradient and moves"
    return Symptom(name, title, bool(facts), evidence, remedy if facts else "")


def custom_op(f: Findings) -> Symptom:
    """Ops that autocast has no rule for, and whether one of them gives NaN."""
    name, title = "custom-op", "an op of your own gives inf or NaN"
    own = {
        op.gradient_of or op.op: op
        for p in f.found.passes.values()
        for op in p.ops
        if is_custom(op.op, op.gradient_of)
    }
    if not own:
        return Symptom(name, title, False, "all ops are torch's own", "")
    guilty = [c for c in f.causes if c.op is not None and is_custom(c.op.op, c.op.gradient_of)]
    if not guilty:
        return Symptom(name, title, False, f"own ops, all finite: {_some(list(own))}", "")
    place = guilty[0].place
    remedy = (
        "Give its Function @custom_fwd(device_type=..., cast_inputs=torch.float32) and"
        " @custom_bwd, so that autocast gives it FP32."
    )
    return Symptom(name, title, True, f"first in {place}", remedy)


def no_speed_up(f: Findings) -> Symptom:
    """Forward and backward timed in turn; 16 bits pay only where the hardware has them."""
    name, title = "no-speed-up", "mixed precision is not faster"
    subject = f.found.subject
    formats: list[str] = [p for p in ("fp32", "bf16", "fp16") if p in f.found.passes]
    seconds: dict[str, list[float]] = {format: [] for format in formats}
    for _ in range(_ROUNDS):
        for format in formats:
            seconds[format].append(_timed(f, format))
    subject.reset()
    medians = {format: statistics.median(times) for format, times in seconds.items()}
    ratios = {k: medians["fp32"] / medians[k] for k in formats if k != "fp32"}
    best = max(ratios, key=lambda k: ratios[k], default="")
    times = ", ".join(f"{k} {v * 1e3:.3g} ms" for k, v in medians.items())
    found = not best or ratios[best] < 1.1
    format, reason = choose_format(subject.device)
    evidence = f"forward and backward: {times}"
    if not found:
        return Symptom(name, title, False, evidence, "")
    odd = _odd_layers(subject.model)
    remedy = f"{reason[0].upper()}{reason[1:]}."
    remedy += " Train in FP32 here." if format == "fp32" else " These ops are too small to gain."
    if odd:
        remedy += f" Sizes that are no multiple of 8 miss such units: {_some(odd)}."
    return Symptom(name, title, True, evidence, remedy)


def resume(f: Findings) -> Symptom:
    """A run that is saved and loaded, beside one that goes on."""
    name, title = "resume", "the run behaves differently after a resume"
    check = verify_resume(
        f.found.subject.recipe, at=3, steps=3, precision=f.policy("fp16"), seed=f.seed
    )
    found = not check.comparison.is_equal
    remedy = "Save with hs.save_checkpoint; state that your loss function keeps is not in it."
    return Symptom(name, title, found, str(check.comparison), remedy if found else "")


CHECKS: dict[str, Check] = {
    "clipped-gradients": clipped_gradients,
    "schedule-ahead": schedule_ahead,
    "activations-overflow": activations_overflow,
    "frozen-parameters": frozen_parameters,
    "custom-op": custom_op,
    "no-speed-up": no_speed_up,
    "resume": resume,
}
TITLES = {
    "schedule-ahead": "the schedule is ahead of the updates",
    "no-speed-up": "mixed precision is not faster",
    "resume": "the run behaves differently after a resume",
}  # of those that take runs of their own


def check_symptoms(f: Findings, names: Sequence[str]) -> tuple[Symptom, ...]:
    """Run the cheap checks and those that were named.

    Args:
        f: What the checks draw on.
        names: Further ones; ``"all"`` for every one.
    """
    log = logging.getLogger("halfstep")
    level = log.level
    log.setLevel(logging.ERROR)  # runs of the checks' own
    try:
        return tuple(_checked(f, name, names) for name in CHECKS)
    finally:
        log.setLevel(level)


def _checked(f: Findings, name: str, names: Sequence[str]) -> Symptom:
    if name in TITLES and not {name, "all"} & set(names):
        return Symptom(name, TITLES[name], None, f"not looked for; give --symptom {name}", "")
    try:
        return CHECKS[name](f)
    except HalfstepError as error:  # the engine refuses the recipe, and says why
        return Symptom(name, TITLES.get(name, name), None, f"could not run: {error}", "")


def checked_names(names: Sequence[str]) -> tuple[str, ...]:
    """The names of symptoms, if all are known.

    Raises:
        BadValueError: One is not.
    """
    for name in names:
        if name not in CHECKS and name != "all":
            raise BadValueError(f"symptom must be one of {', '.join(CHECKS)}, got {name!r}.")
    return tuple(names)


def is_custom(op: str, gradient_of: str) -> bool:
    """Whether an op or its autograd node is not torch's own.

    Args:
        op: Name with namespace.
        gradient_of: Name of the autograd node; torch's own end in a digit.
    """
    node = bool(gradient_of) and not gradient_of[-1].isdigit() and gradient_of != "AccumulateGrad"
    return node or not op.startswith(("aten.", "prims.", "mkldnn.", "quantized."))


def _timed(f: Findings, format: str) -> float:
    start = time.perf_counter()
    f.found.subject.run(f.policy(format))
    if f.found.subject.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _odd_layers(model: nn.Module) -> list[str]:
    return [
        f"{name} ({module.in_features} x {module.out_features})"
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and (module.in_features % 8 or module.out_features % 8)
    ]


def _some(names: Sequence[str]) -> str:
    more = len(names) - 3
    return ", ".join(names[:3]) + (f" and {more} more" if more > 0 else "")
