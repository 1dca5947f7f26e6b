"""Checkpoints of several ranks: one folder, whole or not at all, for any number of ranks.

::

    run/                    the path of the checkpoint
      checkpoint.json       names the save that counts; replaced in one move at the end
      save-1f0c9a77/
        tensors/            models, optimizers, averages
        rest.pt             everything else, as in a checkpoint of one process
        rank-0003.pt        the generators of each rank

A save that is killed leaves a folder ``save-...`` that nothing names; the next one removes it.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from pathlib import Path
from typing import Any

import torch

from halfstep.records import BadValueError
from halfstep.training.checkpoint.entries import Content, joined, split
from halfstep.training.checkpoint.file import sync_folder, write_whole
from halfstep.training.checkpoint.tensor_folder import TensorFolder, save_tensors
from halfstep.training.engine.engine import Engine
from halfstep.update.ranks.ranks import Ranks
from halfstep.update.ranks.shards import is_dtensor

_NAME = "checkpoint.json"


def is_folder(path: Path) -> bool:
    """Whether a checkpoint of several ranks lies there."""
    return (path / _NAME).is_file()


def save_folder(path: Path, content: Content, ranks: Ranks) -> None:
    """Write a checkpoint; called by all ranks with the same path.

    Args:
        path: A folder, made if it is missing, that all ranks see.
        content: Of this rank, as `save_checkpoint` makes it.
        ranks: Several.

    Raises:
        BadValueError: On all ranks: one of them cannot write there, or `path` is something else.

    Syncs: yes.
    """
    is_first = ranks.rank == 0
    problem = _problem_with(path) if is_first else None
    name, problem = ranks.gather((f"save-{uuid.uuid4().hex[:8]}", problem))[0]
    if problem is not None:
        raise BadValueError(problem)
    here = path / name
    tensors, rest = split(content)
    try:
        _agree(ranks, lambda: here.mkdir() if is_first else None)
        own = {key: each for key, each in tensors.items() if is_first or is_dtensor(each)}
        save_tensors(here / "tensors", own, ranks.group)
        _agree(ranks, lambda: _write_rest(here, rest, ranks))
        _agree(ranks, lambda: _publish(path, name, ranks.size) if is_first else None)
    except BaseException:
        if is_first:
            shutil.rmtree(here, ignore_errors=True)
        raise
    if is_first:
        _remove_others(path, name)


def read_folder(path: Path, engine: Engine | None, ranks: Ranks) -> Content:
    """The content of a checkpoint, as `read_checkpoint` returns it, for this rank.

    Args:
        path: From `save_folder`.
        engine: What it is loaded into, whose layout the tensors get; ``None`` for whole ones.
        ranks: Those that call this together; for one process `ONE`.

    Raises:
        BadValueError: It is not whole, or not written by halfstep.
    """
    try:
        about = json.loads((path / _NAME).read_text(encoding="utf-8"))
        here = path / str(about["save"])
    except (OSError, ValueError, KeyError, TypeError):
        raise BadValueError(f"{str(path / _NAME)!r} names no checkpoint.") from None
    if here.name != about["save"]:
        raise BadValueError(f"{str(path / _NAME)!r} points outside of its folder.")
    rest = _load(here / "rest.pt")
    group = ranks.group if ranks.are_several else None
    content = joined(rest, TensorFolder(here / "tensors"), engine, group)
    saved_by = int(about["ranks"])
    if saved_by != ranks.size:
        return without_generators(content, saved_by, ranks)
    content["rng"] = _load(here / _rank_file(ranks.rank))
    return content


def without_generators(content: Content, saved_by: int, ranks: Ranks) -> Content:
    """A checkpoint whose generators are of other processes than these, and are left alone.

    Args:
        content: As `read_folder` returns it.
        saved_by: How many processes wrote it.
        ranks: Those here.
    """
    why = f"the checkpoint has those of {saved_by} processes, and here are {ranks.size}"
    return {**content, "rng": None, "no_rng": why}


def _load(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise BadValueError(f"the checkpoint is not whole: {path.name!r} is gone.") from None
    except Exception:  # torch.load raises anything on what is no checkpoint
        raise BadValueError(f"the checkpoint is not whole: {path.name!r} is cut off.") from None


def _problem_with(path: Path) -> str | None:
    """Why a checkpoint cannot be written there; makes the folder where it can."""
    if path.exists() and not path.is_dir():
        return (
            f"{str(path)!r} is a file, and a checkpoint of several processes is a folder; give"
            " another path."
        )
    if path.is_dir() and not is_folder(path) and any(_foreign(path)):
        return (
            f"{str(path)!r} is a folder with other things in it ({next(_foreign(path))!r}); a"
            " checkpoint of several processes has a folder of its own, such as"
            f" {str(path / 'step-100')!r}."
        )
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return f"cannot write {str(path)!r}: {error.strerror}."
    return None


def _foreign(path: Path) -> Any:
    return (each.name for each in path.iterdir() if not each.name.startswith("save-"))


def _agree(ranks: Ranks, work: Any) -> None:
    """Do something on every rank; an error of one is an error on all."""
    problem: str | None = None
    try:
        work()
    except OSError as error:
        problem = f"cannot write the checkpoint: {error.strerror or error}."
    for rank, each in enumerate(ranks.gather(problem)):
        if each is not None:
            raise BadValueError(each if rank == ranks.rank else f"on rank {rank}: {each}")


def _write_rest(here: Path, rest: Content, ranks: Ranks) -> None:
    _write(here / _rank_file(ranks.rank), rest["rng"])
    if ranks.rank == 0:
        _write(here / "rest.pt", {**rest, "rng": None})


def _write(path: Path, content: object) -> None:
    with path.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())


def _publish(path: Path, name: str, size: int) -> None:
    sync_folder(path / name / "tensors")
    sync_folder(path / name)
    text = json.dumps({"save": name, "ranks": size}).encode()
    write_whole(path / _NAME, lambda file: file.write(text))


def _remove_others(path: Path, name: str) -> None:
    for each in path.glob("save-*"):
        if each.name != name:
            shutil.rmtree(each, ignore_errors=True)


def _rank_file(rank: int) -> str:
    return f"rank-{rank:04d}.pt"
