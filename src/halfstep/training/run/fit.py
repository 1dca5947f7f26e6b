"""`fit`: the one training loop that every tool uses."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import torch

from halfstep.precision import PrecisionSetting
from halfstep.records import BadValueError, RunRecord, ScaleCollapse, StepRecord
from halfstep.records.keywords import explains_keywords
from halfstep.training import other_names
from halfstep.training.checkpoint.folder import CheckpointFolder
from halfstep.training.checkpoint.resume import resume_run
from halfstep.training.processes.one_process import check_one_process
from halfstep.training.run.build import build_engine, described_settings
from halfstep.training.run.data.windows import open_windows
from halfstep.training.run.loop import Loop
from halfstep.training.run.recipe import Recipe
from halfstep.training.run.validation import Best, ValidationPlan, validate

logger = logging.getLogger("halfstep")


@explains_keywords("fit", other_names.FIT)
def fit(
    recipe: Recipe,
    *,
    precision: PrecisionSetting = "auto",
    steps: int = 100,
    accumulate: int = 1,
    max_norm: float | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    checkpoints: CheckpointFolder | None = None,
    resume: str | Path | None = None,
    validate_every: int | None = None,
    keep_best: Best | None = None,
    stop: Callable[[RunRecord], object] | None = None,
    checksums: bool = False,
    diagnose: str = "never",
    zero_gradients: bool = False,
    on_step: Callable[[RunRecord, StepRecord], None] | None = None,
) -> RunRecord:
    """Train a recipe for `steps` attempted updates.

    Args:
        recipe: What to train.
        precision: As for `Engine`.
        steps: Attempted updates, at least 1; with `resume` those made before count.
        accumulate: Micro-batches per update.
        max_norm: As for `Engine`.
        seed: Seeds torch before the model is made, so that runs of one seed start equal.
        device: ``None`` for the accelerator where there is one.
        checkpoints: Where and how often to save the run.
        resume: A checkpoint of this run, or a folder of them: go on bit for bit from there.
        validate_every: Steps between two validations, recorded in `RunRecord.validations`; training
            goes on bit for bit as without them. ``None``: before the first step and after the last.
        keep_best: Which validation's weights to keep as ``best.pt`` in the folder of `checkpoints`,
            such as ``hs.Best("val_loss", "min")``.
        stop: Given the run so far, whether to stop; `patience` makes one. Asked after each
            validation, without `validate_every` after each step (the host waits for it then).
        checksums: Put a checksum of parameters, buffers and averaged weights into each step's
            record; the host then waits for every step.
        diagnose: As for `Engine`; a diagnosis is logged as well.
        zero_gradients: Count the gradient values that are exactly 0 and put their share into each
            step's record; every gradient is read once more per micro-batch.
        on_step: Called with the run so far and each step's record.

    Returns:
        The record of the run. Its status is "stopped" after `stop`, "interrupted" after Ctrl-C and
        "collapsed" after a `ScaleCollapse` (which is logged); the steps made are all there.

    Raises:
        BadValueError, BadTypeError: A setting that cannot be, or several processes.
        RecipeError: A factory of the recipe returned nothing usable, or its batches can be read
            once only.

    Syncs: reads each step's record while the next step runs.
    """
    check_one_process()
    for name, value in (("steps", steps), ("accumulate", accumulate)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise BadValueError(f"{name} must be a whole number of at least 1, got {value!r}.")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise BadValueError(f"seed must be a whole number from 0 to 2^63 - 1, got {seed!r}.")
    plan = ValidationPlan(validate_every, keep_best, stop)
    plan.check(recipe, has_folder=checkpoints is not None)
    place = checked_device(device)
    engine = build_engine(
        recipe, precision=precision, max_norm=max_norm, seed=seed, device=place, diagnose=diagnose
    )
    run = RunRecord(
        id=secrets.token_hex(4),
        recipe=recipe.name,
        format=engine.policy.format,
        reason=engine.policy.reason,
        device=place.type,
        torch=str(torch.__version__),
        started=datetime.now().astimezone().isoformat(timespec="seconds"),
        unit=recipe.unit,
        settings={"steps": steps, "accumulate": accumulate, "max_norm": max_norm, "seed": seed},
    )
    if described := described_settings(recipe):
        run.settings["engine"] = described
    if str(engine.policy) != engine.policy.format:
        run.settings["policy"] = str(engine.policy)
    if validate_every is not None:
        run.settings["validate_every"] = validate_every
    saved = file = None
    if resume is not None:
        file, saved = resume_run(Path(resume), run, engine)
    folder = checkpoints.open(run, file) if checkpoints is not None else None
    data = open_windows(recipe, seed=seed, accumulate=accumulate, device=place, saved=saved)
    loop = Loop(engine, recipe, data, run, folder, plan, checksums, on_step)
    try:
        if resume is None:
            run.initial_validation = validate(recipe, engine)
            plan.check_metrics(run.initial_validation)
        loop.train(zero_gradients)
        run.validation = loop.last_validation()
        run.status = "finished" if len(run.steps) >= steps else "stopped"
    except KeyboardInterrupt:
        run.status = "interrupted"
    except ScaleCollapse as collapse:
        run.status = "collapsed"
        logger.error("%s", collapse)
    finally:
        data.batches.close()
    return run


def checked_device(device: str | torch.device | None) -> torch.device:
    """The device that a setting asks for; ``None`` is the accelerator where there is one."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise BadValueError(f"cannot use device {str(device)!r}: {reason}.") from error
    if place.type == "meta":
        raise BadValueError("cannot use device 'meta': it holds no numbers.")
    return place
