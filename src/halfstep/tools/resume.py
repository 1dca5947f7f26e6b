"""``halfstep resume-check``: does a resumed run equal the straight one?"""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from halfstep.precision import PrecisionSetting
from halfstep.records import BadValueError
from halfstep.records.comparison import Comparison, compare_steps
from halfstep.records.step import StepRecord
from halfstep.training import CheckpointFolder, Engine, Recipe, fit
from halfstep.training.checkpoint.file import read_checkpoint
from halfstep.training.rng import rng_state
from halfstep.training.run.build import build_engine

PARTS = ("scaler", "schedule", "optimizer", "rng", "data", "average", "buffers")


@dataclass(frozen=True)
class ResumeCheck:
    """A run forked at one checkpoint.

    Attributes:
        straight: The steps after the checkpoint of the run that went on.
        resumed: The same of the run that was loaded.
        comparison: What differs first.
        without: Parts of the checkpoint that were left out on purpose.
    """

    straight: list[StepRecord]
    resumed: list[StepRecord]
    comparison: Comparison
    without: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "straight": [step.to_dict() for step in self.straight],
            "resumed": [step.to_dict() for step in self.resumed],
            "comparison": self.comparison.to_dict(),
            "without": list(self.without),
        }


def verify_resume(
    recipe: Recipe,
    *,
    at: int = 6,
    steps: int = 5,
    precision: PrecisionSetting = "auto",
    accumulate: int = 1,
    max_norm: float | None = None,
    seed: int = 0,
    without: Collection[str] = (),
) -> ResumeCheck:
    """Train, save after step `at`, go on; load, go on; compare bit for bit.

    Args:
        recipe: What to train.
        at: The step after which the checkpoint is taken.
        steps: Steps to compare after it.
        precision, accumulate, max_norm, seed: As for `fit`.
        without: Parts to leave as in a fresh run (`PARTS`), to see what forgetting them does.

    Returns:
        Both continuations and their comparison.

    Raises:
        BadValueError: A number below 1 or an unknown part.
    """
    for name, value in (("at", at), ("steps", steps)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise BadValueError(f"{name} must be a whole number of at least 1, got {value!r}.")
    if unknown := sorted(set(without) - set(PARTS)):
        raise BadValueError(f"without must be of {', '.join(PARTS)}, got {', '.join(unknown)}.")
    settings: dict[str, Any] = {
        "precision": precision,
        "accumulate": accumulate,
        "max_norm": max_norm,
        "seed": seed,
        "steps": at + steps,
        "checksums": True,
    }
    with tempfile.TemporaryDirectory() as name:
        folder = CheckpointFolder(Path(name), every=at, keep=at + steps)
        straight = fit(recipe, checkpoints=folder, **settings)
        path = Path(name) / f"step-{at:08d}.pt"
        if not path.exists():
            raise BadValueError(
                f"the run ended ({straight.status}) before step {at}; there is nothing to resume."
            )
        if without:
            fresh = build_engine(
                recipe,
                precision=precision,
                max_norm=max_norm,
                seed=seed,
                device=torch.device(straight.device),
            )
            content = read_checkpoint(path)
            for part in without:
                _forget(part, content, fresh)
            torch.save(content, path)
        resumed = fit(recipe, resume=path, **settings)
    sides = (straight.steps[at:], resumed.steps[at:])
    return ResumeCheck(*sides, compare_steps(*sides), tuple(sorted(without)))


def _forget(part: str, content: dict[str, Any], fresh: Engine) -> None:
    """Put one part of a checkpoint back to what a fresh run has."""
    engine, fresh_engine = content["engine"], fresh.state_dict()
    states = {name: optimizer.state_dict() for name, optimizer in fresh.optimizers.items()}
    if part == "scaler":
        engine["loss_scales"] = fresh_engine["loss_scales"]
    elif part == "schedule":
        engine["schedules"] = fresh_engine["schedules"]
        for name, state in states.items():
            engine["optimizers"][name]["counters"]["consumed"] = 0.0
            groups = content["optimizer"][name]["param_groups"]
            for saved, new in zip(groups, state["param_groups"], strict=True):
                saved["lr"] = new["lr"]
    elif part == "optimizer":
        for name, state in states.items():
            content["optimizer"][name]["state"] = state["state"]  # the moments, not the rate
    elif part == "rng":
        content["rng"] = rng_state()
    elif part == "data":
        content["extra"]["position"] = 0
        content["extra"].pop("data", None)
    elif part == "average":
        engine["emas"] = fresh_engine["emas"]
    else:
        for name, model in fresh.models.items():
            content["model"][name] |= dict(model.named_buffers())
