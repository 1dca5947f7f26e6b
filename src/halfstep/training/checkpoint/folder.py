"""Checkpoints of a run of `fit`: every so many steps, the last few kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halfstep.records import BadValueError, RunRecord
from halfstep.training.checkpoint.file import load_checkpoint, read_checkpoint, save_checkpoint
from halfstep.training.engine.engine import Engine

_MUST_AGREE = ("accumulate", "max_norm", "seed")


@dataclass(frozen=True)
class CheckpointFolder:
    """Where and how often a run is saved.

    Attributes:
        folder: Made if it is missing; the files are ``step-00000010.pt`` and so on, and
            ``best.pt`` where `fit` was asked for it.
        every: Steps between two checkpoints, at least 1.
        keep: How many of the newest stay, at least 1.
    """

    folder: Path
    every: int
    keep: int = 3

    def __post_init__(self) -> None:
        for name in ("every", "keep"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise BadValueError(f"{name} must be a whole number of at least 1, got {value!r}.")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadValueError(
                f"cannot make the folder {str(self.folder)!r} for checkpoints: {error.strerror}."
            ) from error

    def is_due(self, step: int) -> bool:
        """Whether to save after this step."""
        return step % self.every == 0

    def save(
        self, engine: Engine, run: RunRecord, position: int, data: dict[str, Any] | None = None
    ) -> None:
        """Save after the last step of `run`, then remove what is too old.

        Args:
            engine: Between two windows.
            run: So far.
            position: How many windows were drawn from the recipe's batches.
            data: Where the run is in them, as plain data and tensors.
        """
        path = self.folder / f"step-{len(run.steps):08d}.pt"
        save_checkpoint(path, engine, extra=_extra(run, position, data))
        for old in _checkpoints(self.folder)[: -self.keep]:
            old.unlink()

    def save_best(
        self, engine: Engine, run: RunRecord, position: int, data: dict[str, Any] | None = None
    ) -> None:
        """Save as ``best.pt``, in the place of the best one before; never removed by `save`.

        Args:
            engine, run, position, data: As for `save`.
        """
        save_checkpoint(self.folder / "best.pt", engine, extra=_extra(run, position, data))


def resume_run(path: Path, run: RunRecord, engine: Engine) -> tuple[RunRecord, dict[str, Any]]:
    """Load a checkpoint of `fit` into a fresh engine.

    Args:
        path: A checkpoint, or a folder of them (the newest is taken).
        run: The fresh record, with the settings of this run.
        engine: Built for this run.

    Returns:
        The record to go on with (this run's settings, the steps made so far), and the
        checkpoint's extra, which says where the run is in its data.

    Raises:
        BadValueError: The checkpoint is of another recipe, format, seed, accumulation or clipping,
            or cannot be loaded.
    """
    path = newest_checkpoint(path)
    extra = read_checkpoint(path)["extra"]
    if "run" not in extra:
        raise BadValueError(f"{str(path)!r} was not saved by halfstep train; it holds no run.")
    before = RunRecord.from_dict(extra["run"])
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
    load_checkpoint(path, engine)
    run.steps = before.steps
    run.initial_validation = before.initial_validation
    run.validations = before.validations
    run.duration_s = before.duration_s
    return run, extra


def newest_checkpoint(path: Path) -> Path:
    """`path` itself, or the newest checkpoint in it if it is a folder."""
    if not path.is_dir():
        return path
    found = _checkpoints(path)
    if not found:
        raise BadValueError(f"the folder {str(path)!r} holds no checkpoint (step-*.pt).")
    return found[-1]


def _extra(run: RunRecord, position: int, data: dict[str, Any] | None) -> dict[str, Any]:
    found = {"run": run.to_dict(), "position": position}
    return found if data is None else {**found, "data": data}


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*.pt"))
