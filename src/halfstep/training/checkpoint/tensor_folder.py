"""Tensors of several ranks in one folder, by `torch.distributed.checkpoint`, without its pickles.

Loading executes nothing from the files: the index of such a folder is a pickle, which is read with
a closed list of classes, and only tensors are ever asked for.
"""

from __future__ import annotations

import contextlib
import pickle
import threading
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import (
    FileSystemReader,
    FileSystemWriter,
    _StorageInfo,
)
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from halfstep.records import BadValueError

_METADATA = "torch.distributed.checkpoint.metadata"
_CLASSES = {
    (_METADATA, "ChunkStorageMetadata"),
    (_METADATA, "Metadata"),
    (_METADATA, "MetadataIndex"),
    (_METADATA, "StorageMeta"),
    (_METADATA, "TensorProperties"),
    (_METADATA, "TensorStorageMetadata"),
    (_METADATA, "_MEM_FORMAT_ENCODING"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    ("pathlib", "PosixPath"),
    ("pathlib", "WindowsPath"),
    ("pathlib", "Path"),
    ("pathlib._local", "PosixPath"),
    ("pathlib._local", "WindowsPath"),
}


def save_tensors(folder: Path, tensors: Mapping[str, Tensor], group: Any) -> None:
    """Write the parts of this rank; called by all ranks.

    Args:
        folder: Empty.
        tensors: Sharded ones by every rank, whole ones by one rank alone.
        group: Of the ranks; ``None`` where this process is alone.

    Raises:
        BadValueError: On all ranks, where one could not write.

    Syncs: yes.
    """
    writer = FileSystemWriter(folder, single_file_per_rank=True, sync_files=True)
    with _quietly(group), _explained("the tensors of the checkpoint cannot be written"):
        save(dict(tensors), storage_writer=writer, process_group=group, no_dist=group is None)


class TensorFolder:
    """What is in such a folder, and reading it into tensors of any other layout.

    Args:
        folder: From `save_tensors`.

    Raises:
        BadValueError: It is no whole folder, or its index holds something else than tensors.
    """

    def __init__(self, folder: Path) -> None:
        self._reader = _SafeReader(folder)
        entries: dict[str, Any] = self._reader.read_metadata().state_dict_metadata
        self.shapes = {name: tuple(entry.size) for name, entry in entries.items()}
        self.dtypes = {name: entry.properties.dtype for name, entry in entries.items()}

    def read_into(self, targets: Mapping[str, Tensor], group: Any) -> None:
        """Fill tensors, sharded or not, each with what it needs; called by all ranks.

        Args:
            targets: Names in `shapes`, tensors of their shapes.
            group: As for `save_tensors`.

        Raises:
            BadValueError: On all ranks, where one could not read.
        """
        if targets or group is not None:
            with _quietly(group), _explained("the tensors of the checkpoint cannot be read"):
                load(
                    dict(targets),
                    storage_reader=self._reader,
                    process_group=group,
                    no_dist=group is None,
                )


class _SafeReader(FileSystemReader):
    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        path = Path(self.path) / ".metadata"
        try:
            with path.open("rb") as file:
                found = _ClosedUnpickler(file).load()
        except FileNotFoundError:
            raise BadValueError(f"{str(path.parent)!r} is not whole: its index is gone.") from None
        except BadValueError:
            raise
        except Exception as error:  # pickle raises anything on what is none
            raise BadValueError(f"the index {str(path)!r} cannot be read: {error}.") from None
        metadata: Metadata = _checked(found, path)
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class _ClosedUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _CLASSES:
            return super().find_class(module, name)
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        raise BadValueError(
            f"the index of the checkpoint wants to make a {module}.{name}, which no index of"
            " tensors holds; it was not written by halfstep, and nothing of it was executed."
        )


def _checked(found: object, path: Path) -> Metadata:
    if not isinstance(found, Metadata) or not all(
        isinstance(entry, TensorStorageMetadata) for entry in found.state_dict_metadata.values()
    ):
        raise BadValueError(
            f"the index {str(path)!r} holds something else than tensors; it was not written by"
            " halfstep, and nothing of it was executed."
        )
    for info in (found.storage_data or {}).values():
        if (
            not isinstance(info, _StorageInfo)
            or Path(info.relative_path).name != info.relative_path
        ):
            raise BadValueError(f"the index {str(path)!r} points outside of its folder.")
    return found


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except CheckpointException as error:
        rank, first = next(iter(error.failures.items()))
        reason = f"{type(first[0]).__name__}: {first[0]}".splitlines()[0].rstrip(":. ")
        raise BadValueError(f"{what} (rank {rank}, {reason}).") from None


@contextlib.contextmanager
def _quietly(group: Any) -> Iterator[None]:
    """torch warns that one process saves as one process, which is meant.

    Filters of warnings belong to the process, so that a save in the background leaves them alone.
    """
    if group is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="torch")
        yield
