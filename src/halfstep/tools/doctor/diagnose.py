"""`diagnose`: the recipe on one batch in every format, and what follows from it."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from halfstep.precision import BASES, Policy
from halfstep.records import (
    BadValueError,
    Cause,
    Diagnosis,
    DiagnosisCost,
    Equality,
    GradientRange,
    HalfstepError,
    RefusedOpError,
)
from halfstep.records.diagnosis import Health
from halfstep.tools.doctor.causes import advice
from halfstep.tools.doctor.causes.given import given_causes, made
from halfstep.tools.doctor.causes.rounds import broken_passes
from halfstep.tools.doctor.causes.together import half_losses, merged, poisoned_buffers
from halfstep.tools.doctor.causes.underflow import gradient_underflow
from halfstep.tools.doctor.checks.dtypes import dtype_rows
from halfstep.tools.doctor.checks.profile import write_profile
from halfstep.tools.doctor.checks.reproduction import write_reproduction
from halfstep.tools.doctor.checks.symptoms import Findings, check_symptoms, checked_names
from halfstep.tools.doctor.examination import Examination
from halfstep.tools.doctor.runs.gradient_range import gradient_range
from halfstep.tools.doctor.runs.lost_updates import TriedUpdate, lost_causes, try_update
from halfstep.tools.doctor.runs.one_batch import OneBatch
from halfstep.tools.doctor.runs.passes import INIT_SCALE, Pass, largest_finite_scale, trace_pass
from halfstep.tools.doctor.runs.training import compare_runs, training_causes
from halfstep.tracing.source_lines import line_of_error, line_text
from halfstep.training import Recipe
from halfstep.training.rng import rng_state, set_rng_state
from halfstep.training.run.fit import checked_device

logger = logging.getLogger("halfstep")

PASSES = (("bf16", "bf16", 1.0), ("fp16", "fp16", 1.0), ("fp16 scaled", "fp16", INIT_SCALE))


def diagnose(
    recipe: Recipe,
    *,
    policy: str | Policy = "cuda",
    batch: int = 0,
    seed: int = 0,
    device: str | torch.device | None = None,
    steps: int = 0,
    symptoms: Sequence[str] = (),
    max_norm: float | None = None,
    max_seconds: float = 600.0,
    repro: str | Path | None = None,
    profile: str | Path | None = None,
) -> Diagnosis:
    """Run one batch of a recipe in FP32, BF16 and FP16 and say what breaks, where and why.

    Nothing moves: weights, buffers, optimizer and generators are afterwards as they were.

    Args:
        recipe: What to look at.
        policy: Whose op lists decide what runs in 16 bits: ``"cuda"`` (on a CPU too, so that what
            fails on a GPU fails here) or ``"device"``. Or a `Policy`, or the path of a
            ``precision.toml``, whose exceptions and islands then hold in every run.
        batch: Which of the recipe's batches, from 0.
        seed: Seeds torch before the model is made.
        device: ``None`` for the accelerator where there is one.
        steps: Train so many steps in each format too, and compare the losses.
        symptoms: Names of checks that need runs of their own (``"schedule-ahead"``,
            ``"no-speed-up"``, ``"resume"``), or ``"all"``; the others always run.
        max_norm: To what you clip; for the check ``"clipped-gradients"``.
        max_seconds: No further run is begun after so long; what was left out is in
            `Diagnosis.cost`. The FP32 pass and one pass in 16 bits always run.
        repro: A folder for the failing op's inputs and a script that shows the failure with torch
            alone; written only where an op fails.
        profile: A ``.json`` file for a profiler trace of one step in every format that runs; for
            "mixed precision is not faster".

    Returns:
        The diagnosis; `Diagnosis.is_healthy` and its text say the verdict.

    Raises:
        BadValueError: A setting that cannot be.
        RecipeError: A factory of the recipe returned nothing usable.

    Syncs: yes.
    """
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 0:
        raise BadValueError(f"batch must be a whole number of at least 0, got {batch!r}.")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
        raise BadValueError(f"steps must be a whole number of at least 0, got {steps!r}.")
    is_number = isinstance(max_seconds, (int, float)) and not isinstance(max_seconds, bool)
    if not is_number or not max_seconds > 0:
        raise BadValueError(f"max_seconds must be a number above 0, got {max_seconds!r}.")
    rules = _checked_policy(policy)
    names = checked_names(symptoms)
    place = checked_device(device)
    before = rng_state()
    try:
        examined = _Examined(OneBatch(recipe, batch, seed, place), rules, seed, max_seconds)
        try:
            found = examined.diagnosis(steps, names, max_norm)
            if repro is not None:
                write_reproduction(examined.found, found.causes, Path(repro))
            if profile is not None:
                formats = [
                    name for name in ("fp32", "bf16", "fp16") if name in examined.found.passes
                ]
                write_profile(examined.subject, examined.policy, formats, Path(profile))
            return found
        finally:
            examined.subject.close()
    finally:
        set_rng_state(before)


def _checked_policy(policy: object) -> Policy:
    if isinstance(policy, Policy):
        return policy
    if policy in BASES:
        return Policy("fp16", base=str(policy))
    if isinstance(policy, os.PathLike) or str(policy).endswith(".toml"):
        return Policy.load(str(policy))
    raise BadValueError(
        f"policy must be 'cuda', 'device', a Policy or the path of a precision.toml, got"
        f" {policy!r}."
    )


class _Examined:
    """The steps of a diagnosis; each adds causes."""

    def __init__(self, subject: OneBatch, rules: Policy, seed: int, max_seconds: float) -> None:
        self.started = time.monotonic()
        self.max_seconds = max_seconds
        self.step_seconds = 0.0
        self.subject = subject
        self.rules = rules
        rules.attach(subject.model)
        self.seed = seed
        self.causes: list[Cause] = given_causes(subject)
        self.found = Examination(subject, {}, deadline=self.started + max_seconds)
        self.range: GradientRange | None = None
        self.update = TriedUpdate((), {})

    def diagnosis(self, steps: int, symptoms: Sequence[str], max_norm: float | None) -> Diagnosis:
        """Run everything."""
        began = time.monotonic()
        self.subject.run(self.policy("fp32"))  # untraced: an error of the user's own looks like one
        self.subject.reset()
        self.step_seconds = time.monotonic() - began
        logger.info(
            "one FP32 step takes %.3g s; the diagnosis ends after %.4g s at the latest",
            self.step_seconds,
            self.max_seconds,
        )
        self.found.passes["fp32"] = trace_pass(self.subject, "fp32", self.policy("fp32"))
        for name, format, scale in PASSES:
            if len(self.found.passes) < 2 or self.found.has_time(f"the pass {name}"):
                self._run(name, format, scale)
        self._settle_scale()
        if self.found.passes["fp32"].is_finite:
            self._find_range()
        self.causes += broken_passes(self.found)
        if self.range is not None:
            self.causes += self._underflow(self.range)
        self.causes += half_losses(self.found)
        if self.found.passes["fp32"].is_finite and self.found.has_time("an update on trial"):
            self.update = self._try_update()
            self.causes += lost_causes(self.update.lost)
        self.causes += poisoned_buffers(self.found)
        equality, state = self._compare(steps)
        self.causes += state + training_causes(equality)
        causes = merged(self.causes)
        errors = [cause for cause in causes if cause.severity == "error"]
        passes = self.found.passes
        findings = Findings(
            self.found, self.range, self.update, causes, self.policy, max_norm, self.seed
        )
        return Diagnosis(
            recipe=self.subject.recipe.name,
            device=self.subject.device.type,
            torch=str(torch.__version__),
            policy=", ".join([self.rules.base, *self.rules.exceptions]),
            health="healthy" if not errors else _kind_of_health(errors[0]),
            headline=advice.headline(causes, tuple(passes)),
            causes=causes,
            passes=tuple(p.record() for p in passes.values()),
            gradient_range=self.range,
            lost_updates=self.update.lost,
            equality=equality,
            symptoms=check_symptoms(findings, symptoms),
            dtypes=dtype_rows(self.subject, passes, self.update.state),
            cost=self._cost(),
        )

    def _cost(self) -> DiagnosisCost:
        lineages = [p.lineage for p in self.found.passes.values()]
        notes = sum(s.numel() * s.element_size() for each in lineages for s in each.samples)
        return DiagnosisCost(
            seconds=time.monotonic() - self.started,
            step_seconds=self.step_seconds,
            max_seconds=float(self.max_seconds),
            notes_bytes=notes,
            left_out=tuple(self.found.left_out),
        )

    def _try_update(self) -> TriedUpdate:
        try:
            return try_update(self.subject, self.found.passes["fp32"])
        except Exception as error:  # a step that wants a closure, say: the rest is still worth it
            logger.warning("no update could be tried (%s); lost updates are not known", error)
            return TriedUpdate((), {})

    def _compare(self, steps: int) -> tuple[Equality, list[Cause]]:
        errors = list(self.found.errors.values())
        if steps and not self.found.has_time("the training runs"):
            steps = 0
        try:
            return compare_runs(
                self.subject.recipe,
                errors,
                self.policy,
                steps=steps,
                seed=self.seed,
                device=self.subject.device,
                formats=[name for name in ("bf16", "fp16") if name in self.found.passes],
            )
        except HalfstepError as error:
            logger.warning("no runs to compare: %s", error)
            return Equality(tuple(errors), (), math.nan, {}), []

    def policy(self, format: str) -> Policy:
        """The user's rules in a format."""
        return replace(self.rules, format=format)

    def _run(self, name: str, format: str, scale: float) -> None:
        try:
            low = trace_pass(self.subject, name, self.policy(format), scale)
        except Exception as error:  # FP32 ran, so the format is to blame, if it is not the tracer
            is_ours = isinstance(error, HalfstepError) and not isinstance(error, RefusedOpError)
            if is_ours or not self._fails_untraced(format, scale):
                raise
            self.causes.append(_cannot_run(name, error))
            self.subject.reset()
            return
        self.found.keep(low)

    def _fails_untraced(self, format: str, scale: float) -> bool:
        try:
            self.subject.run(self.policy(format), scale)
        except Exception:
            return True
        return False

    def _settle_scale(self) -> None:
        """Where only the scale is too large, go on with one that is not, as training would."""
        plain, scaled = self.found.passes.get("fp16"), self.found.passes.get("fp16 scaled")
        if plain is None or scaled is None or scaled.is_finite or not math.isfinite(plain.loss):
            return
        if not self.found.passes["fp32"].is_finite:
            return
        if not self.found.has_time("a loss scale that fits"):
            return
        scale = largest_finite_scale(self.subject, scaled.policy, scaled.loss_scale)
        if scale is None:
            return
        low = trace_pass(self.subject, scaled.name, scaled.policy, scale)
        if scale >= 1:
            self.causes.append(_searching(scaled, scale))
            self.found.keep(low)
        elif not self.found.wrong(low):
            self.causes.append(_too_large(self.found.passes["fp32"], scale))
            self.found.fp16_is_explained = True

    def _find_range(self) -> None:
        passes, beside = self.found.passes, self.found.beside
        name = next((n for n in ("fp16", "fp16 scaled", "bf16") if n in beside), None)
        low, other = (passes[name], beside[name]) if name is not None else (None, None)
        self.range = gradient_range(self.subject, passes["fp32"], low, other)

    def _underflow(self, range_: GradientRange) -> list[Cause]:
        """Gradients that the loss scale is too small for, unless something else explains FP16."""
        scaled = self.found.passes.get("fp16 scaled")
        errors = [cause for cause in self.causes if cause.severity == "error"]
        is_explained = any("fp16 scaled" in cause.passes for cause in errors)
        if scaled is None or not scaled.is_finite or is_explained:
            return []
        return gradient_underflow(self.found, range_, scaled)


def _kind_of_health(first: Cause) -> Health:
    return "precision" if first.is_precision else "not_precision"


def _searching(scaled: Pass, scale: float) -> Cause:
    op = scaled.bad.record if scaled.bad is not None else None
    skips = round(math.log2(scaled.loss_scale / scale))
    return replace(
        made(
            "scale_searching",
            "overflow",
            (scaled.name,),
            is_precision=True,
            severity="note",
            module=op.module if op is not None else "",
            evidence=f"not finite at {scaled.loss_scale:g}, finite at {scale:g}",
            explanation=f"The loss scale is still searching: about {skips} skipped steps at the"
            " start of a run are normal and harmless.",
            remedy=f"Nothing; or start at DynamicLossScale(init_scale={scale:g}).",
        ),
        op=op,
    )


def _too_large(fp32: Pass, scale: float) -> Cause:
    """No loss scale of at least 1 helps, and a smaller one does."""
    bits = round(-math.log2(scale))
    return made(
        "loss_too_large",
        "overflow",
        ("fp16", "fp16 scaled"),
        is_precision=True,
        subject="the loss",
        evidence=f"gradient norm {fp32.grad_norm:.4g}; not finite at a loss scale of 1, finite and"
        f" right at 2^-{bits}",
        explanation="No loss scale above min_scale=1 helps, so that FP16 skips every update: the"
        f" loss is 2^{bits} too large. It is finite in itself; its gradients do not fit.",
        remedy=f"Divide the loss by 2.0**{bits} (a mean instead of a sum?), or allow the scale:"
        f" DynamicLossScale(init_scale=2.0**-{bits}, min_scale=2.0**-{bits + 8}). Tried on this"
        " batch: healthy.",
    )


# How ops say that this device, not the format, has no kernel for it.
_NO_KERNEL = ("not implemented for", "could not create a primitive", "not supported on")


def _cannot_run(name: str, error: Exception) -> Cause:
    text = next(iter(str(error).splitlines()), "").split(". ")[0]
    line = line_text(line_of_error(error))
    is_device = isinstance(error, NotImplementedError) or any(t in str(error) for t in _NO_KERNEL)
    formats = advice.in_words((name,))
    return made(
        "cannot_run",
        "dtype",
        (name,),
        is_precision=True,
        severity="note" if is_device else "error",
        evidence=f"{type(error).__name__}: {text} at {line}",
        explanation=f"This device has no {formats} kernel for an op of this model; another may."
        if is_device
        else f"{formats} cannot run this model: an op refuses the dtypes that autocast gives it.",
        remedy="Look at this format on a device that has it."
        if is_device
        else "Cast by hand at that line, or keep that part in FP32 with hs.fp32().",
    )
