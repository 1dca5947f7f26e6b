"""Checkpoints of everything, written whole or not at all, loaded without running code."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from halfstep.records import BadValueError
from halfstep.training.checkpoint.fits import check_fits
from halfstep.training.engine.engine import Engine
from halfstep.training.rng import rng_state, set_rng_state

_VERSION = 2
_PARTS = ("model", "optimizer", "engine", "rng", "extra")


def save_checkpoint(
    path: str | Path, engine: Engine, *, extra: dict[str, Any] | None = None
) -> None:
    """Write model, optimizer, engine (scale, counters, clock, schedule, average) and RNG states.

    The file is written beside its place, synced to the disk and renamed, so that `path` is always
    a whole checkpoint, the old or the new one, also if the process is killed. What a killed save
    left behind is removed by the next one.

    Args:
        path: Where to.
        engine: Outside of an open window.
        extra: Your own plain data and tensors (position in the data, epoch).

    Raises:
        CallOrderError: Inside an open window.
        BadValueError: The folder cannot be written to.

    Syncs: yes.

    Example:
        >>> import torch, tempfile, halfstep as hs
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> engine = hs.Engine(model, optimizer, precision="fp32")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     hs.save_checkpoint(f"{folder}/run.pt", engine, extra={"epoch": 3})
        ...     hs.load_checkpoint(f"{folder}/run.pt", engine)
        {'epoch': 3}
    """
    target = Path(path)
    content = {
        "halfstep_checkpoint": _VERSION,
        "model": {name: model.state_dict() for name, model in engine.models.items()},
        "optimizer": {name: opt.state_dict() for name, opt in engine.optimizers.items()},
        "engine": engine.state_dict(),
        "rng": rng_state(),
        "extra": extra or {},
    }
    temporary = target.with_name(f"{target.name}.tmp-{os.getpid()}")
    try:
        for stale in target.parent.glob(f"{target.name}.tmp-*"):
            stale.unlink(missing_ok=True)
        with temporary.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
        _sync_folder(target.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise BadValueError(
            f"cannot write the checkpoint {str(target)!r}: {error.strerror}."
        ) from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def load_checkpoint(path: str | Path, engine: Engine) -> dict[str, Any]:
    """Restore everything that `save_checkpoint` wrote into an engine built the same way.

    Args:
        path: A file from `save_checkpoint`.
        engine: With the model, optimizer, schedule, average and kind of loss scale of that run.

    Returns:
        The `extra` that was saved.

    Raises:
        BadValueError: No such file, a truncated or foreign one, one of another version, or one
            whose parts do not fit the engine's. Nothing is changed then.

    Syncs: yes.
    """
    content = read_checkpoint(path)
    check_fits(path, content, engine)
    for name, model in engine.models.items():
        model.load_state_dict(content["model"][name])
    for name, optimizer in engine.optimizers.items():
        optimizer.load_state_dict(content["optimizer"][name])
    engine.load_state_dict(content["engine"])
    set_rng_state(content["rng"])
    extra: dict[str, Any] = content["extra"]
    return extra


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """The content of a checkpoint, on the CPU, without executing code from the file.

    Args:
        path: A file from `save_checkpoint`.

    Raises:
        BadValueError: It is missing, truncated, foreign, or of another version.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise BadValueError(f"no checkpoint {str(path)!r}.") from None
    except Exception as error:  # torch.load raises anything on what is no checkpoint
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if "Weights only load failed" in reason:
            reason = "it holds objects that only running its code could make; keep extra plain"
        raise BadValueError(
            f"{str(path)!r} is no whole checkpoint (truncated, or of something else): {reason}"
        ) from error
    if not isinstance(content, dict) or "halfstep_checkpoint" not in content:
        raise BadValueError(
            f"{str(path)!r} was not written by halfstep.save_checkpoint; load its parts with"
            " load_state_dict of the model, the optimizer and the engine."
        )
    if content["halfstep_checkpoint"] != _VERSION or any(part not in content for part in _PARTS):
        raise BadValueError(
            f"{str(path)!r} is a checkpoint of version {content['halfstep_checkpoint']}, this"
            f" halfstep reads version {_VERSION}; load it with the version that wrote it."
        )
    return content


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable, where folders can be synced."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)
