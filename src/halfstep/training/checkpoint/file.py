"""Checkpoints of everything, written whole or not at all, loaded without running code."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal, overload

import torch

from halfstep.records import BadTypeError, BadValueError
from halfstep.training.checkpoint.background import (
    PendingSave,
    copied,
    in_the_background,
    own_group,
    wait_for_save,
)
from halfstep.training.checkpoint.fits import optimizer_facts
from halfstep.training.checkpoint.parts import NOT_ASKED_FOR, Load, LoadReport, chosen_parts
from halfstep.training.checkpoint.plain import refuse_unloadable
from halfstep.training.engine.engine import Engine
from halfstep.training.rng import rng_state
from halfstep.update.ranks.ranks import ONE
from halfstep.update.ranks.shards import has_dtensors, local_parts

logger = logging.getLogger("halfstep")

_VERSION = 2
_ENTRIES = ("model", "optimizer", "engine", "rng", "extra")
_WITHOUT_TENSORS: dict[str, Any] = {
    "model": {},
    "optimizer": {},
    "engine": {},
}  # written as tensors, or plain


@overload
def save_checkpoint(
    path: str | Path,
    engine: Engine,
    *,
    extra: dict[str, Any] | None = None,
    wait: Literal[True] = True,
) -> None: ...


@overload
def save_checkpoint(
    path: str | Path, engine: Engine, *, extra: dict[str, Any] | None = None, wait: bool
) -> PendingSave | None: ...


def save_checkpoint(
    path: str | Path, engine: Engine, *, extra: dict[str, Any] | None = None, wait: bool = True
) -> PendingSave | None:
    """Write model, optimizer, engine (scale, counters, clock, schedule, average) and RNG states.

    The file is written beside its place, synced to the disk and renamed, so that `path` is always
    a whole checkpoint, the old or the new one, also if the process is killed. What a killed save
    left behind is removed by the next one.

    With several processes all of them call it, with the same path on a file system that all see;
    `path` is a folder then.

    Args:
        path: Where to.
        engine: Outside of an open window.
        extra: Your own plain data and tensors by name (position in the data, epoch).
        wait: ``False`` to write in the background, from a copy of everything that is made at once.
            One at a time: the next save of the engine waits for it, as the end of the process does.

    Returns:
        With ``wait=False`` the save that goes on: ``wait()`` raises what went wrong.

    Raises:
        CallOrderError: Inside an open window.
        BadTypeError: An entry, of `extra` or of a state, that `load_checkpoint` could not load
            again: NumPy scalars, paths, namespaces, objects. Nothing is written then.
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
    if extra is not None and not isinstance(extra, dict):
        raise BadTypeError(f"extra must be a dict by name, got {type(extra).__name__}.")
    state = engine.state_dict()  # first: it commits the previous step, whose rate is then in place
    content = {
        "halfstep_checkpoint": _VERSION,
        "model": {name: model.state_dict() for name, model in engine.models.items()},
        "optimizer": {name: opt.state_dict() for name, opt in engine.optimizers.items()},
        "optimizer_facts": {
            name: optimizer_facts(opt, engine.models) for name, opt in engine.optimizers.items()
        },
        "engine": state,
        "rng": rng_state(),
        "extra": extra or {},
    }
    wait_for_save(engine)
    if engine.ranks.are_several:
        with engine.all_together():
            return _save_together(target, engine, content, wait)
    if has_dtensors(p for model in engine.models.values() for p in model.parameters()):
        content |= {part: local_parts(content[part]) for part in _WITHOUT_TENSORS}
    refuse_unloadable(content)
    if not wait:
        copy = copied(content)
        return in_the_background(
            engine, lambda: write_whole(target, lambda file: torch.save(copy, file))
        )
    write_whole(target, lambda file: torch.save(content, file))
    return None


def _save_together(
    target: Path, engine: Engine, content: dict[str, Any], wait: bool
) -> PendingSave | None:
    from halfstep.training.checkpoint.several_ranks import save_folder

    refuse_unloadable({**content, **_WITHOUT_TENSORS})
    if wait:
        save_folder(target, content, engine.ranks)
        return None
    copy, ranks = copied(content), own_group(engine)
    return in_the_background(engine, lambda: save_folder(target, copy, ranks))


def write_whole(target: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file beside its place, sync it and rename it: the old or the new one, never half.

    Args:
        target: Its place.
        write: Writes the content into an open file.

    Raises:
        BadValueError: The folder cannot be written to.
    """
    temporary = target.with_name(f"{target.name}.tmp-{os.getpid()}")
    try:
        for stale in target.parent.glob(f"{target.name}.tmp-*"):
            stale.unlink(missing_ok=True)
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
        sync_folder(target.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise BadValueError(f"cannot write {str(target)!r}: {error.strerror}.") from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


class LoadedCheckpoint(dict[str, Any]):
    """The `extra` of a checkpoint, with what was loaded beside it.

    Attributes:
        report: What was restored, and what was left as it was.
    """

    def __init__(self, extra: Mapping[str, Any], report: LoadReport) -> None:
        super().__init__(extra)
        self.report = report


def load_checkpoint(
    path: str | Path,
    engine: Engine,
    *,
    parts: str | Collection[str] | None = None,
    without: str | Collection[str] = (),
    strict: bool = True,
) -> LoadedCheckpoint:
    """Restore what `save_checkpoint` wrote: everything, or the parts that are asked for.

    The parts are ``"model"``, ``"optimizer"`` (its state and settings), ``"schedule"`` (with the
    learning rates), ``"loss_scale"``, ``"average"``, ``"counters"`` (with the token clock and what
    conditions have learnt) and ``"rng"``. A part that is not loaded stays as it is; an average that
    is not loaded with the weights starts again from them.

    Entries of the model are found with and without the prefixes of `torch.compile`
    (``_orig_mod.``) and of wrappers (``module.``).

    Args:
        path: A file from `save_checkpoint`.
        engine: With the model, optimizer, schedule, average and kind of loss scale of that run, as
            far as they are loaded.
        parts: Names of those to load; ``None`` for all. ``"model"`` loads the weights alone.
        without: Names of those to leave out, ``without="loss_scale"`` from FP16 to BF16.
        strict: ``False`` leaves out what does not fit, parts as well as entries of the model, and
            logs each as a warning; ``True`` refuses it.

    Returns:
        The `extra` that was saved, a dict; its ``report`` says what was loaded.

    Raises:
        BadValueError: No such file, a truncated or foreign one, one of another version, one whose
            parts do not fit the engine's, or an unknown part. Nothing is changed then.

    Syncs: yes.
    """
    wanted = chosen_parts(parts, without)
    engine.settle()
    with engine.all_together():
        return _load(Path(path), engine, wanted, strict)


def _load(path: Path, engine: Engine, wanted: list[str], strict: bool) -> LoadedCheckpoint:
    content = read_checkpoint(path, engine)
    try:
        report = Load(content, engine, wanted, strict=strict).run()
    except BadValueError as error:
        raise BadValueError(
            f"the checkpoint {str(path)!r} does not fit this engine: {error}"
        ) from error.__cause__
    for name, why in report.left_out.items():
        if why != NOT_ASKED_FOR:
            logger.warning("%s: %s was left out: %s", path, name, why)
    return LoadedCheckpoint(content["extra"], report)


def read_checkpoint(path: str | Path, engine: Engine | None = None) -> dict[str, Any]:
    """The content of a checkpoint, on the CPU, without executing code from the file.

    Args:
        path: A file or folder from `save_checkpoint`.
        engine: What it will be loaded into: of a folder each process then reads its own part.

    Raises:
        BadValueError: It is missing, truncated, foreign, or of another version.
    """
    is_folder = Path(path).is_dir()
    content = _from_folder(Path(path), engine) if is_folder else _from_file(path)
    if content["halfstep_checkpoint"] != _VERSION or any(part not in content for part in _ENTRIES):
        raise BadValueError(
            f"{str(path)!r} is a checkpoint of version {content['halfstep_checkpoint']}, this"
            f" halfstep reads version {_VERSION}; load it with the version that wrote it."
        )
    if engine is not None and engine.ranks.are_several and not is_folder:
        from halfstep.training.checkpoint.several_ranks import without_generators

        return without_generators(content, 1, engine.ranks)
    return content


def _from_folder(path: Path, engine: Engine | None) -> dict[str, Any]:
    from halfstep.training.checkpoint.several_ranks import is_folder, read_folder

    if not is_folder(path):
        raise BadValueError(
            f"{str(path)!r} is a folder without a checkpoint of several processes; give the file or"
            " folder that save_checkpoint was given."
        )
    return read_folder(path, engine, ONE if engine is None else engine.ranks)


def _from_file(path: str | Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise BadValueError(f"no checkpoint {str(path)!r}.") from None
    except Exception as error:  # torch.load raises anything on what is no checkpoint
        raise BadValueError(f"{str(path)!r} is no whole checkpoint: {_reason(error)}.") from None
    if not isinstance(content, dict) or "halfstep_checkpoint" not in content:
        raise BadValueError(
            f"{str(path)!r} was not written by halfstep.save_checkpoint; load its parts with"
            " load_state_dict of the model, the optimizer and the engine."
        )
    return content


def _reason(error: Exception) -> str:
    """Why `torch.load` failed, without its paragraph."""
    if isinstance(error, OSError):
        return f"it cannot be read ({error.strerror})"
    if "Unsupported" in str(error) or "GLOBAL" in str(error):
        return "it holds objects that only running code from it could make"
    return "it is truncated, or a file of another kind"


def sync_folder(folder: Path) -> None:
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
