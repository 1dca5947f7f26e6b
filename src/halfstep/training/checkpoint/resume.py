"""Going on with a run of `fit` from one of its checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from halfstep.records import BadValueError, RunRecord
from halfstep.training.checkpoint.choices import Choices
from halfstep.training.checkpoint.file import load_checkpoint, read_checkpoint
from halfstep.training.checkpoint.folder import newest_checkpoint
from halfstep.training.engine.engine import Engine

logger = logging.getLogger("halfstep")

_MUST_AGREE = ("accumulate", "max_norm", "seed")


def resume_run(path: Path, run: RunRecord, engine: Engine) -> tuple[Path, dict[str, Any]]:
    """Load a checkpoint of `fit` into a fresh engine, and the steps made so far into its record.

    Args:
        path: A checkpoint, or a folder of them (the newest is taken).
        run: The fresh record, with the settings of this run; it gets the identity of the one that
            goes on.
        engine: Built for this run.

    Returns:
        The file, and the checkpoint's extra, which says where the run is in its data.

    Raises:
        BadValueError: The checkpoint is of another recipe, format, seed, accumulation or clipping,
            or cannot be loaded.
    """
    path = newest_checkpoint(path)
    content = read_checkpoint(path)
    extra = content["extra"]
    if "run" not in extra:
        raise BadValueError(f"{str(path)!r} was not saved by halfstep train; it holds no run.")
    before = RunRecord.from_dict(extra["run"])
    _refuse_other_settings(path, before, run)
    asked = Choices(engine)
    load_checkpoint(path, engine)
    asked.warn_of_unused(content, engine)
    _warn_of_other_engine(before, run)
    run.id = before.id or run.id
    run.steps = before.steps
    run.initial_validation = before.initial_validation
    run.validations = before.validations
    run.duration_s = before.duration_s
    _say_where(path, before, run)
    return path, extra


def _refuse_other_settings(path: Path, before: RunRecord, run: RunRecord) -> None:
    pairs: list[tuple[str, object, object]] = [
        ("recipe", before.recipe, run.recipe),
        ("format", before.format, run.format),
        ("policy", before.settings.get("policy"), run.settings.get("policy")),
    ]
    pairs += [(key, before.settings.get(key), run.settings[key]) for key in _MUST_AGREE]
    for name, was, now in pairs:
        if was != now:
            raise BadValueError(
                f"{str(path)!r} was saved with {name} {was}, this run has {now}; resume with the"
                " same, or start afresh."
            )


def _warn_of_other_engine(before: RunRecord, run: RunRecord) -> None:
    was: Mapping[str, Any] = before.settings.get("engine", {})
    now: Mapping[str, Any] = run.settings.get("engine", {})
    for name in sorted((was.keys() | now.keys()) - {"loss_scale"}):  # it is in the checkpoint
        if was.get(name) != now.get(name):
            logger.warning(
                "the run was saved with the engine setting %s=%s, and goes on with %s",
                name,
                was.get(name),
                now.get(name),
            )


def _say_where(path: Path, before: RunRecord, run: RunRecord) -> None:
    made, wanted = len(run.steps), run.settings["steps"]
    which = f"run {run.id}, started {before.started}"
    if made >= wanted:
        logger.warning(
            "%s (%s) has made its %d steps, and %d were asked for: nothing is left to train",
            path,
            which,
            made,
            wanted,
        )
    else:
        logger.info("resumed %s (%s): going on at step %d of %d", path, which, made + 1, wanted)
