"""Parameters of which each process holds a part, recognised without importing their classes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer

from halfstep.records import BadValueError


def num_processes() -> int:
    """Processes of the default group; 1 without a group."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size()
    return 1


def is_sharded(parameter: Tensor) -> bool:
    """Whether a parameter is a DTensor, or a flat or original parameter of torch's first FSDP."""
    # FullyShardedDataParallel marks its flat parameters and the views of them by this attribute.
    if hasattr(parameter, "_fsdp_flattened"):
        return True
    return any(each.__name__ == "DTensor" for each in type(parameter).__mro__)


def refuse_sharded(optimizer: Optimizer) -> None:
    """Refuse an optimizer over sharded parameters where there are several processes.

    Raises:
        BadValueError: A parameter is sharded: the gradient norm would be that of one part.

    Syncs: no.
    """
    if num_processes() == 1:
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if is_sharded(parameter):
                raise sharded_error(f"of shape {tuple(parameter.shape)}")


def sharded_error(which: str) -> BadValueError:
    """The refusal, for the engine and the drop-in alike.

    Args:
        which: The parameter, by name or shape.
    """
    return BadValueError(
        f"the parameter {which} is sharded over {num_processes()} processes; each would check and"
        " clip by the gradient norm of its own part, and one could step where another skips. Use"
        " DistributedDataParallel, or keep torch.amp.GradScaler (ShardedGradScaler under"
        " FullyShardedDataParallel)."
    )
