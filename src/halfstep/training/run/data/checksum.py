"""What a batch holds, as 16 digits: cheap enough for every step, and nothing waits for it."""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

_VALUES = 4096


def data_checksum(batch: Any) -> str:
    """A checksum of the content of a batch, to tell whether two runs have seen the same data.

    It covers the type and shape of every tensor and array and up to 4,096 evenly spaced values of
    each, and all numbers and texts, in lists, tuples, mappings and dataclasses. Tensors that are
    on an accelerator already count by type and shape: reading them would wait. Other objects are
    left out.

    Args:
        batch: Anything.

    Returns:
        16 hexadecimal digits.

    Syncs: no.

    Example:
        >>> import torch
        >>> data_checksum(torch.zeros(3)) == data_checksum(torch.ones(3))
        False
    """
    digest = hashlib.blake2b(digest_size=8)
    _add(digest, batch)
    return digest.hexdigest()


def _add(digest: Any, value: Any) -> None:
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, Tensor):
            digest.update(f"{leaf.dtype}{tuple(leaf.shape)}".encode())
            if leaf.is_cpu and leaf.layout == torch.strided:
                digest.update(_sample(leaf.detach()))
        elif isinstance(leaf, Mapping):  # of a class that torch does not take apart
            _add(digest, [part for item in leaf.items() for part in item])
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            _add(digest, [getattr(leaf, field.name) for field in dataclasses.fields(leaf)])
        elif hasattr(leaf, "__array_interface__") and not leaf.dtype.hasobject:
            digest.update(f"{leaf.dtype}{leaf.shape}".encode())
            flat = leaf.reshape(-1)
            digest.update(flat[:: _stride(flat.size)].tobytes())
        elif isinstance(leaf, (int, float, complex, str, bytes)):
            digest.update(repr(leaf).encode())


def _sample(values: Tensor) -> bytes:
    in_memory = sorted(range(values.dim()), key=values.stride, reverse=True)
    flat = values.permute(in_memory).reshape(-1)  # a view where the memory has no gaps
    few = flat[:: _stride(flat.numel())].contiguous()
    return ctypes.string_at(few.data_ptr(), few.numel() * few.element_size())


def _stride(size: int) -> int:
    return max(1, -(-size // _VALUES))
