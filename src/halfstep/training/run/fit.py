"""`fit`: the one training loop that every tool uses."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from halfstep.precision import PrecisionSetting
from halfstep.records import (
    BadTypeError,
    BadValueError,
    RecipeError,
    RunRecord,
    ScaleCollapse,
    StepRecord,
)
from halfstep.records.keywords import explains_keywords
from halfstep.training import other_names
from halfstep.training.checkpoint.folder import CheckpointFolder, resume_run
from halfstep.training.engine.engine import Engine
from halfstep.training.rng import rng_state, set_rng_state
from halfstep.training.run.build import build_engine, state_checksum
from halfstep.training.run.recipe import Recipe
from halfstep.training.run.scale_trend import ScaleTrend
from halfstep.training.run.zero_gradients import ZeroGradients
from halfstep.training.surroundings.processes import check_one_process
from halfstep.training.window.micro_batches import Window
from halfstep.update import StepOutcome
from halfstep.update.readback import Readback

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
        checksums: Put a checksum of parameters, buffers and averaged weights into each step's
            record; the host then waits for every step.
        diagnose: As for `Engine`; a diagnosis is logged as well.
        zero_gradients: Count the gradient values that are exactly 0 and put their share into each
            step's record; every gradient is read once more per micro-batch.
        on_step: Called with the run so far and each step's record.

    Returns:
        The record of the run. Its status is "interrupted" after Ctrl-C and "collapsed" after a
        `ScaleCollapse` (which is logged); the steps made are all there.

    Raises:
        BadValueError, BadTypeError: A setting that cannot be, or several processes.
        RecipeError: A factory of the recipe returned nothing usable.

    Syncs: reads each step's record while the next step runs.
    """
    check_one_process()
    for name, value in (("steps", steps), ("accumulate", accumulate)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise BadValueError(f"{name} must be a whole number of at least 1, got {value!r}.")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise BadValueError(f"seed must be a whole number from 0 to 2^63 - 1, got {seed!r}.")
    place = checked_device(device)
    engine = build_engine(
        recipe, precision=precision, max_norm=max_norm, seed=seed, device=place, diagnose=diagnose
    )
    run = RunRecord(
        recipe=recipe.name,
        format=engine.policy.format,
        reason=engine.policy.reason,
        device=place.type,
        torch=str(torch.__version__),
        started=datetime.now().astimezone().isoformat(timespec="seconds"),
        unit=recipe.unit,
        settings={"steps": steps, "accumulate": accumulate, "max_norm": max_norm, "seed": seed},
    )
    if str(engine.policy) != engine.policy.format:
        run.settings["policy"] = str(engine.policy)
    windows = _windows(recipe, accumulate, place)
    position = 0
    if resume is not None:
        run, position = resume_run(Path(resume), run, engine)
        state = rng_state()
        for _ in range(position):
            next(windows)  # the recipe's order is fixed: this is the position in the data
        set_rng_state(state)
    data = _Data(windows, position)
    try:
        if resume is None:
            run.initial_validation = _validate(recipe, engine)
        zeros = ZeroGradients(engine.model) if zero_gradients else None
        _train(engine, recipe, data, run, checkpoints, checksums, zeros, on_step)
        run.validation = _validate(recipe, engine)
        run.status = "finished"
    except KeyboardInterrupt:
        run.status = "interrupted"
    except ScaleCollapse as collapse:
        run.status = "collapsed"
        logger.error("%s", collapse)
    return run


@dataclass
class _Data:
    """The windows of a run, and how many were drawn."""

    windows: Iterator[list[Any]]
    position: int

    def next(self) -> list[Any]:
        self.position += 1
        return next(self.windows)


def _train(
    engine: Engine,
    recipe: Recipe,
    data: _Data,
    run: RunRecord,
    checkpoints: CheckpointFolder | None,
    checksums: bool,
    zeros: ZeroGradients | None,
    on_step: Callable[[RunRecord, StepRecord], None] | None,
) -> None:
    trend = ScaleTrend()
    offset = data.position - len(run.steps)  # 0, unless the position was left out on purpose

    def note(record: StepRecord, share: Readback | None = None) -> None:
        record = replace(
            record,
            zero_gradient_fraction=share.wait()[0] if share and record.updated else None,
            batch=(record.step + offset - 1) * run.settings["accumulate"],
            checksum=state_checksum(engine) if checksums else None,
        )
        run.steps.append(record)
        run.duration_s = seconds_before + time.perf_counter() - start
        if record.diagnosis is not None:
            logger.warning("step %d skipped: %s", record.step, record.diagnosis)
        if message := trend.note(record):
            logger.warning("%s", message)
        if on_step is not None:
            on_step(run, record)

    def note_oldest() -> None:
        outcome, share = pending.pop(0)
        note(outcome.record, share)

    engine.model.train()
    pending: list[
        tuple[StepOutcome, Readback | None]
    ] = []  # read one step late, when the host need not wait any more
    seconds_before, start = run.duration_s, time.perf_counter()
    try:
        for step in range(len(run.steps) + 1, run.settings["steps"] + 1):
            outcome = engine.train_step(data.next(), recipe.loss_fn)
            pending.append((outcome, zeros.take() if zeros else None))
            is_due = checkpoints is not None and checkpoints.is_due(step)
            while len(pending) > (0 if is_due or checksums else 1):
                note_oldest()
            if checkpoints is not None and is_due:
                checkpoints.save(engine, run, data.position)
    except ScaleCollapse as collapse:
        if pending:
            note_oldest()
        if collapse.record is not None:
            note(collapse.record)
        raise
    finally:
        if zeros is not None:
            zeros.remove()
        while pending:
            note_oldest()


def _windows(recipe: Recipe, accumulate: int, device: torch.device) -> Iterator[list[Any]]:
    """Windows of `accumulate` batches without end; a finite sequence starts again."""
    window = Window[Any]()
    while True:
        empty = True
        for batch in recipe.batches():
            empty = False
            window.append(to_device(batch, device))
            if len(window) == accumulate:
                yield window
                window = Window()
        if empty:
            raise RecipeError(f"batches() of recipe {recipe.name!r} yields nothing.")


def _validate(recipe: Recipe, engine: Engine) -> dict[str, float]:
    if recipe.validate is None:
        return {}
    found = _metrics(recipe.validate, engine, engine.model)
    if engine.ema is not None:
        averaged = _metrics(recipe.validate, engine, engine.ema.module)
        found |= {f"averaged_{name}": value for name, value in averaged.items()}
    return found


def _metrics(
    validate: Callable[[nn.Module], float | Mapping[str, float]], engine: Engine, model: nn.Module
) -> dict[str, float]:
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), engine.autocast():
            result = validate(model)
    finally:
        model.train(was_training)
    named = result if isinstance(result, Mapping) else {"validation": result}
    return {str(name): _checked_metric(name, value) for name, value in named.items()}


def _checked_metric(name: object, value: object) -> float:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return float(value)
    if isinstance(value, (int, float)):
        return float(value)
    raise BadTypeError(
        f"Recipe.validate must return a number or a mapping of names to numbers, got"
        f" {type(value).__name__} for {name!r}."
    )


def to_device(batch: Any, device: torch.device) -> Any:
    """`batch` with every tensor in it (tuples, lists, dicts, named tuples) on `device`."""

    def move(leaf: Any) -> Any:
        return leaf.to(device, non_blocking=True) if isinstance(leaf, torch.Tensor) else leaf

    return pytree.tree_map(move, batch)


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
