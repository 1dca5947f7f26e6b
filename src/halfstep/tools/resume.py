"""``halfstep resume-check``: does a resumed run equal the straight one?"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from halfstep.precision import PrecisionSetting
from halfstep.records import BadValueError, RunRecord
from halfstep.records.comparison import Comparison, compare_steps
from halfstep.records.step import StepRecord
from halfstep.tools.state_difference import StateDifference, first_difference
from halfstep.training import CheckpointFolder, Engine, Recipe, fit
from halfstep.training.checkpoint.file import read_checkpoint
from halfstep.training.checkpoint.folder import RunFolder
from halfstep.training.rng import rng_state
from halfstep.training.run.build import build_engine

PARTS = ("scaler", "schedule", "optimizer", "rng", "data", "average", "buffers")


@dataclass(frozen=True)
class ResumeCheck:
    """A run forked at one checkpoint.

    Attributes:
        straight: The steps after the checkpoint of the run that went on.
        resumed: The same of the run that was loaded.
        comparison: Which step differs first, and by what.
        state: The first entry of the whole state (weights, optimizer, loss scale with its counters,
            schedule, averages, generators, data) that differs after the last step.
        without: Parts of the checkpoint that were left out on purpose.
    """

    straight: list[StepRecord]
    resumed: list[StepRecord]
    comparison: Comparison
    state: StateDifference | None
    without: tuple[str, ...]

    @property
    def is_equal(self) -> bool:
        """Whether neither a step nor the state after the last one differs."""
        return self.comparison.is_equal and self.state is None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "straight": [step.to_dict() for step in self.straight],
            "resumed": [step.to_dict() for step in self.resumed],
            "comparison": self.comparison.to_dict(),
            "state": None if self.state is None else self.state.to_dict(),
            "is_equal": self.is_equal,
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
        Both continuations, their comparison step by step, and that of the states they end in.

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
    last = at + steps
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name) / which for which in ("straight", "resumed")]
        straight = fit(recipe, checkpoints=_Twice(folders[0], 1, at=(at, last)), **settings)
        path = folders[0] / f"step-{at:08d}.pt"
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
        resumed = fit(
            recipe, resume=path, checkpoints=_Twice(folders[1], 1, at=(last,)), **settings
        )
        state = _compare_states([folder / f"step-{last:08d}.pt" for folder in folders])
    sides = (straight.steps[at:], resumed.steps[at:])
    return ResumeCheck(*sides, compare_steps(*sides), state, tuple(sorted(without)))


@dataclass(frozen=True)
class _Twice(CheckpointFolder):
    """Saves at given steps, and keeps all."""

    at: tuple[int, ...] = ()

    def open(self, run: RunRecord, resumed: Path | None = None) -> RunFolder:
        return _AtSteps(self.folder, 1, len(self.at), [], at=self.at)


@dataclass
class _AtSteps(RunFolder):
    at: tuple[int, ...] = ()

    def is_due(self, step: int) -> bool:
        return step in self.at


def _compare_states(paths: Sequence[Path]) -> StateDifference | None:
    """The first difference; none where a run ended early, which its steps say."""
    if not all(path.exists() for path in paths):
        return None
    states = []
    for path in paths:
        content = read_checkpoint(path)
        parts = {part: content[part] for part in ("model", "optimizer", "engine", "rng")}
        states.append({**parts, "data": content["extra"].get("data")})
    return first_difference(states[0], states[1])


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
