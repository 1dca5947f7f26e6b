"""The part of a sharded tensor that this rank holds, without importing torch.distributed.

torch's `DTensor` computes as if it were whole, by collectives that nobody asked for: ``float()`` of
a norm gives the local value, and fused kernels have no rule for most optimizers. The engine works
on the local parts and exchanges one vector per step instead.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from torch import Tensor


def is_dtensor(tensor: object) -> bool:
    """Whether a tensor is one of torch's `DTensor`; false without a look where none can exist."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def has_dtensors(tensors: Iterable[object]) -> bool:
    """Whether any of them is a `DTensor`."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and any(isinstance(tensor, module.DTensor) for tensor in tensors)


def local_of(tensor: Tensor) -> Tensor:
    """The part of `tensor` on this rank, with its memory; a plain tensor is its own part.

    Syncs: waits for a collective that is still filling the part.
    """
    if not is_dtensor(tensor):
        return tensor
    part: Any = tensor._local_tensor  # type: ignore[attr-defined]
    wait = getattr(part, "wait", None)  # a part that a collective is still filling
    return part if wait is None else wait()  # type: ignore[no-any-return]


def local_parts(value: Any) -> Any:
    """Plain data with the local part of every tensor in it.

    Args:
        value: Dicts, lists and tuples around tensors and other things.
    """
    if isinstance(value, dict):
        return {key: local_parts(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(local_parts(each) for each in value)
    return local_of(value) if isinstance(value, Tensor) else value


def like(tensor: Tensor, part: Tensor) -> Tensor:
    """A tensor that is distributed as `tensor` is, around another local part."""
    if not is_dtensor(tensor):
        return part
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        part,
        tensor.device_mesh,  # type: ignore[attr-defined]
        tensor.placements,  # type: ignore[attr-defined]
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )


def sharded_as(tensor: Tensor, whole: Tensor) -> Tensor:
    """A whole tensor, or the part of it that this rank holds where `tensor` is sharded.

    Args:
        tensor: Of the same shape.
        whole: The same on every rank; one that is sharded already is returned as it is.

    Syncs: no.
    """
    if not is_dtensor(tensor) or is_dtensor(whole):
        return whole
    from torch.distributed.tensor import distribute_tensor

    mesh: Any = tensor.device_mesh  # type: ignore[attr-defined]
    placements: Any = tensor.placements  # type: ignore[attr-defined]
    whole = whole.detach().to(mesh.device_type)
    return distribute_tensor(whole, mesh, placements, src_data_rank=None)


def placed_as(grad: Tensor, parameter: Tensor) -> Tensor:
    """A gradient with the placements of its parameter; the very tensor where it has them.

    Tensor parallelism leaves gradients of replicated parameters as parts that are still to be
    added up.

    Syncs: a collective where the placements differ.
    """
    if not is_dtensor(grad) or grad.placements == parameter.placements:  # type: ignore[attr-defined]
        return grad
    return grad.redistribute(placements=parameter.placements)  # type: ignore[attr-defined, no-any-return]


def num_shards(tensor: Tensor) -> int:
    """Into how many different parts a tensor is cut; 1 for a plain or a replicated one."""
    if not is_dtensor(tensor):
        return 1
    mesh: Any = tensor.device_mesh  # type: ignore[attr-defined]
    count = 1
    for dim, placement in enumerate(tensor.placements):  # type: ignore[attr-defined]
        if not (placement.is_replicate() or placement.is_partial()):
            count *= mesh.size(dim)
    return count
