"""The folder of a run: its identity in ``run.json``, its checkpoints, the last few kept.

A folder belongs to one run. Its files are written and removed by that run alone: another one that
would save there is refused before it trains.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from halfstep.records import BadValueError, RunRecord
from halfstep.training.checkpoint.file import save_checkpoint, write_whole
from halfstep.training.engine.engine import Engine

logger = logging.getLogger("halfstep")

_ABOUT, _BEST, _VERSION = "run.json", "best.pt", 1


@dataclass(frozen=True)
class CheckpointFolder:
    """Where and how often a run is saved.

    Attributes:
        folder: Made if it is missing; the files are ``step-00000010.pt`` and so on, ``run.json``
            with the run's identity and settings, and ``best.pt`` where `fit` was asked for it.
        every: Steps between two checkpoints, at least 1.
        keep: How many of the newest stay, at least 1. Only files of the run itself are removed.
        fresh: Where a run lies in the folder already, take the next free folder beside it
            (``runs/lm-2``) instead of refusing.
    """

    folder: Path
    every: int
    keep: int = 3
    fresh: bool = False

    def __post_init__(self) -> None:
        for name in ("every", "keep"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise BadValueError(f"{name} must be a whole number of at least 1, got {value!r}.")
        _made(self.folder)

    def open(self, run: RunRecord, resumed: Path | None = None) -> RunFolder:
        """The folder, for one run; nothing is trained before it is known to be free.

        Args:
            run: With its identity, settings and the steps made so far.
            resumed: The checkpoint that the run goes on from; ``None`` for a run that starts.

        Raises:
            BadValueError: Another run lies there, or later checkpoints of this one.
        """
        folder = self.folder
        if _is_taken(folder):
            if resumed is not None and resumed.parent.resolve() == folder.resolve():
                files = _own_files(folder, run)
                return RunFolder(folder, self.every, self.keep, files, is_ours=True)
            if self.fresh:
                folder = _free_beside(folder)
                logger.info("the run is saved in %s; %s holds another one", folder, self.folder)
            else:
                raise BadValueError(_whose(folder))
        return RunFolder(_made(folder), self.every, self.keep, [])


@dataclass
class RunFolder:
    """The folder of one run.

    Attributes:
        folder: Where.
        every: Steps between two checkpoints.
        keep: How many of the newest stay.
        files: Names of the checkpoints that this run has written and not removed, oldest first.
        is_ours: Whether ``run.json`` names this run; else the first save sees to it.
    """

    folder: Path
    every: int
    keep: int
    files: list[str]
    is_ours: bool = False

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
        name = f"step-{len(run.steps):08d}.pt"
        self._claim(run)
        self.files = [*(file for file in self.files if file != name), name]
        self._describe(run)  # first, so that a file of a save that is killed here is the run's own
        save_checkpoint(self.folder / name, engine, extra=_extra(run, position, data))
        old, kept = self.files[: -self.keep], self.files[-self.keep :]
        for file in old:
            (self.folder / file).unlink(missing_ok=True)
        self.files = kept
        self._describe(run)

    def save_best(
        self, engine: Engine, run: RunRecord, position: int, data: dict[str, Any] | None = None
    ) -> None:
        """Save as ``best.pt``, in the place of the best one before; never removed by `save`.

        Args:
            engine, run, position, data: As for `save`.
        """
        self._claim(run)
        save_checkpoint(self.folder / _BEST, engine, extra=_extra(run, position, data))

    def _claim(self, run: RunRecord) -> None:
        """Make the folder this run's, or take the next one if another run was faster."""
        while not self.is_ours:
            if not _is_taken(self.folder) and self._create(run):
                self.is_ours = True
                return
            taken, self.folder = self.folder, _made(_free_beside(self.folder))
            logger.warning(
                "the run %s has begun to save in %s meanwhile; this one (%s) is saved in %s",
                _owner(taken),
                taken,
                run.id,
                self.folder,
            )

    def _create(self, run: RunRecord) -> bool:
        """Write the first ``run.json``, unless there is one by now."""
        try:
            with (self.folder / _ABOUT).open("x", encoding="utf-8") as file:
                file.write(self._text(run))
        except FileExistsError:
            return False
        except OSError as error:
            raise BadValueError(
                f"cannot write into the folder {str(self.folder)!r}: {error.strerror}."
            ) from error
        return True

    def _describe(self, run: RunRecord) -> None:
        """Write ``run.json``: whose folder this is, and which files are the run's."""
        text = self._text(run)
        write_whole(self.folder / _ABOUT, lambda file: file.write(text.encode()))

    def _text(self, run: RunRecord) -> str:
        about = {"halfstep_run_folder": _VERSION, **run.header(), "files": self.files}
        return json.dumps(about, indent=2, allow_nan=False) + "\n"


def newest_checkpoint(path: Path) -> Path:
    """`path` itself, or the newest checkpoint in it if it is a folder."""
    if not path.is_dir():
        return path
    found = _checkpoints(path)
    if not found:
        raise BadValueError(f"the folder {str(path)!r} holds no checkpoint (step-*.pt).")
    return found[-1]


def _own_files(folder: Path, run: RunRecord) -> list[str]:
    """The checkpoints in the folder of a run that goes on there."""
    about = _about(folder)
    steps = len(run.steps)
    names = [path.name for path in _checkpoints(folder)]
    if about is not None and about.get("id") != run.id:
        raise BadValueError(_whose(folder))
    if late := [name for name in names if _step_of(name) > steps]:
        raise BadValueError(
            f"{str(folder)!r} holds later checkpoints than step {steps} (up to {late[-1]}), which"
            f" this run would write over: resume the newest (--resume {folder}), or save into"
            " another folder (--save-to)."
        )
    return names if about is None else [name for name in names if name in about["files"]]


def _whose(folder: Path) -> str:
    about, found = _about(folder), _checkpoints(folder)
    whose = "a run"
    if about is not None:
        whose = f"the run {about.get('id')} of {about.get('recipe')} ({about.get('started')})"
    has_saved, go_on = ", which has saved nothing", ""
    if found:
        last = _step_of(found[-1].name)
        has_saved, go_on = f", saved up to step {last}", f"go on with it (--resume {folder}), "
    elif (folder / _BEST).exists():
        has_saved, go_on = ", saved as best.pt", f"go on with it (--resume {folder / _BEST}), "
    return (
        f"{str(folder)!r} holds {whose}{has_saved}: {go_on}start a new one beside it (--fresh), or"
        " save into another folder (--save-to)."
    )


def _about(folder: Path) -> dict[str, Any] | None:
    """``run.json``; ``None`` in a folder that was written before there was one."""
    try:
        found: dict[str, Any] = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise BadValueError(
            f"cannot read {str(folder / _ABOUT)!r}, which says whose folder this is ({error})."
        ) from error
    return found


def _owner(folder: Path) -> str:
    """Identity of the run in a folder; another process may be writing it right now."""
    try:
        return str((_about(folder) or {}).get("id", "?"))
    except BadValueError:
        return "?"


def _is_taken(folder: Path) -> bool:
    return any((folder / name).exists() for name in (_ABOUT, _BEST)) or bool(_checkpoints(folder))


def _free_beside(folder: Path) -> Path:
    beside = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
    return next(each for each in beside if not _is_taken(each))


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadValueError(
            f"cannot make the folder {str(folder)!r} for checkpoints: {error.strerror}."
        ) from error
    return folder


def _extra(run: RunRecord, position: int, data: dict[str, Any] | None) -> dict[str, Any]:
    found = {"run": run.to_dict(), "position": position}
    return found if data is None else {**found, "data": data}


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step-*.pt") if path.stem[5:].isdigit())


def _step_of(name: str) -> int:
    return int(name.removeprefix("step-").removesuffix(".pt"))
