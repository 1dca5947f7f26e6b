"""Who trains together: read from what wraps and shards the models.

Nothing here imports torch.distributed's wrappers: where none of their modules is loaded there is
nothing to find.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn

from halfstep.records import BadValueError
from halfstep.update.ranks.peers import Peers
from halfstep.update.ranks.ranks import ONE, Ranks, SquareSum
from halfstep.update.ranks.shards import is_dtensor

logger = logging.getLogger("halfstep")

# torch's hooks for DDP that leave the average over the group; others may sum, or average over fewer
_AVERAGING = {
    "allreduce_hook",
    "batched_powerSGD_hook",
    "bf16_compress_hook",
    "bf16_compress_wrapper",
    "fp16_compress_hook",
    "fp16_compress_wrapper",
    "powerSGD_hook",
}
_LONG = timedelta(minutes=5)


def num_processes() -> int:
    """Processes of the default group; 1 without a group."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size()
    return 1


def find_ranks(
    modules: Iterable[nn.Module],
    parameters: Sequence[tuple[str, Tensor]],
    device: torch.device,
    *,
    group: Any = None,
    square_sum: SquareSum | None = None,
    is_whole: bool = True,
) -> Ranks:
    """The processes that train these parameters together.

    Args:
        modules: All modules of the models; wrappers are looked for among them.
        parameters: Trainable ones, with their names.
        device: Where they are.
        group: A process group that says it instead, or ``False`` for a process of its own.
        square_sum: See `Ranks`.
        is_whole: Whether these are all parameters that train; else some may be outside of wrappers.

    Raises:
        BadValueError: Several processes, and nothing says how they train together; or something
            that no rule is known for.

    Syncs: no.
    """
    if group is False or num_processes() == 1:
        return ONE
    _refuse_flat(parameters)
    modules = list(modules)
    ddp = [module for module in modules if is_ddp(module)]
    fsdp = [part for module in modules if is_fsdp(module) for part in fsdp_parts(module)]
    sharded = [p for _, p in parameters if is_dtensor(p)]
    if not (ddp or fsdp or sharded) and group is None and square_sum is None:
        _refuse_alone()
    if ddp and not sharded and group is None and is_whole:
        _refuse_outside(ddp, parameters)
    found = _group_of(ddp, sharded) if group is None else group
    size = torch.distributed.get_world_size(found)
    if size < 2:
        return ONE
    averaged = {_averaged_by_ddp(module) for module in ddp} | set(map(_averaged_by_fsdp, fsdp))
    data = {float(_size(m.process_group)) for m in ddp} | {float(_data_size(p)) for p in fsdp}
    if not averaged and not sharded and square_sum is None:  # exchanged by hand, as an average
        averaged, data = {float(size)}, {float(size)}
    for name, values in (("divide gradients by", averaged), ("share batches among", data)):
        if len(values) > 1:
            raise BadValueError(
                f"the parts of the model {name} different numbers ({_listed(values)}), so that no"
                " one factor makes their gradients true; use one mesh and one divide factor."
            )
    if averaged and not all(map(math.isfinite, averaged)):
        raise BadValueError("set_gradient_divide_factor must be positive and finite.")
    _mention_timeout(found)
    rank = torch.distributed.get_rank(found)
    return Ranks(
        size=size,
        rank=rank,
        group=found,
        device=device,
        averaged_over=averaged.pop() if averaged else 1.0,
        copies_of_data=size / (data.pop() if data else 1.0),
        square_sum=square_sum,
        peers=Peers(torch.distributed.get_rank()),
    )


def is_ddp(module: nn.Module) -> bool:
    """Whether a module is torch's DistributedDataParallel, or a subclass."""
    return isinstance(module, torch.nn.parallel.DistributedDataParallel)


def is_fsdp(module: nn.Module) -> bool:
    """Whether `fully_shard` was called on a module."""
    loaded = sys.modules.get("torch.distributed.fsdp")
    return loaded is not None and isinstance(module, loaded.FSDPModule)


def fsdp_parts(module: nn.Module) -> list[Any]:
    """The groups of parameters that one `fully_shard` exchanges together."""
    state: Any = module._get_fsdp_state()  # type: ignore[operator]
    parts = getattr(state, "_fsdp_param_groups", None)  # torch before 2.13 has one at most
    return list(parts) if parts is not None else [g for g in (state._fsdp_param_group,) if g]


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside of DistributedDataParallel."""
    return model.module if is_ddp(model) else model  # type: ignore[return-value]


def reshard(models: Iterable[nn.Module]) -> None:
    """Drop whole weights that a forward of `fully_shard` has left: the shards will be written."""
    for model in models:
        for module in model.modules():
            if is_fsdp(module):
                module.reshard()  # type: ignore[operator]


def inner_models(models: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """Models by name without DistributedDataParallel around them."""
    return {name: unwrapped(model) for name, model in models.items()}


def _refuse_flat(parameters: Sequence[tuple[str, Tensor]]) -> None:
    # FullyShardedDataParallel marks its flat parameters and the views of them by this attribute.
    for name, parameter in parameters:
        if hasattr(parameter, "_fsdp_flattened"):
            raise BadValueError(
                f"the parameter {name!r} is in a flat one of FullyShardedDataParallel, which does"
                " not say which part of it a process holds; use torch.distributed.fsdp.fully_shard"
                " (FSDP2), DistributedDataParallel, or torch's ShardedGradScaler."
            )


def _refuse_alone() -> None:
    raise BadValueError(
        f"this is one of {num_processes()} processes, and nothing says how they train together: no"
        " model of the engine is in DistributedDataParallel and no parameter is sharded, so that"
        " each would go its own way. Give the engine the wrapped model; or"
        " process_group=torch.distributed.group.WORLD if you average gradients yourself in"
        " engine.gradients(); or process_group=False if each process trains a model of its own."
    )


def _refuse_outside(ddp: Sequence[Any], parameters: Sequence[tuple[str, Tensor]]) -> None:
    exchanged = {
        id(p)
        for wrapper in ddp
        for name, p in wrapper.module.named_parameters()
        if name not in wrapper.parameters_to_ignore
    }
    outside = [name for name, p in parameters if id(p) not in exchanged]
    if outside:
        raise BadValueError(
            f"{len(outside)} trainable parameters (first: {outside[0]!r}) get no gradients from"
            " other processes, because no DistributedDataParallel wrapper holds them; the"
            f" {num_processes()} processes would drift apart. Wrap the whole model, or freeze"
            " them with requires_grad_(False)."
        )


def _group_of(ddp: Sequence[Any], sharded: Sequence[Tensor]) -> Any:
    world = torch.distributed.group.WORLD
    if sharded:
        mesh: Any = sharded[0].device_mesh  # type: ignore[attr-defined]
        root = mesh._get_root_mesh() if hasattr(mesh, "_get_root_mesh") else mesh
        if root.size() not in (1, torch.distributed.get_world_size()):
            raise BadValueError(
                f"the mesh of the model has {root.size()} ranks and the run"
                f" {torch.distributed.get_world_size()}; make one mesh over all ranks and slice it,"
                " or give the group that trains this model as process_group=."
            )
        return world
    if not ddp:
        return world
    groups = {tuple(_members(module.process_group)): module.process_group for module in ddp}
    if len(groups) > 1:
        raise BadValueError(
            "the DistributedDataParallel modules of the engine have different process groups"
            f" ({', '.join(str(list(g)) for g in groups)}); give them one group."
        )
    return next(iter(groups.values()))


def _members(group: Any) -> list[int]:
    return torch.distributed.get_process_group_ranks(group)


def _size(group: Any) -> int:
    return torch.distributed.get_world_size(group)


def _averaged_by_ddp(module: Any) -> float:
    for hook, _ in getattr(module, "_comm_hooks", ()):
        name = getattr(hook, "__qualname__", type(hook).__name__).partition(".")[0]
        if name not in _AVERAGING:
            raise BadValueError(
                f"the communication hook {name!r} of DistributedDataParallel is not one of torch's"
                " that leave the average over all ranks, so that the size of its gradients is"
                " unknown; use allreduce_hook, fp16_compress_hook, bf16_compress_hook or"
                " powerSGD_hook."
            )
        if name.startswith("fp16"):
            _once(
                "fp16 hook",
                "fp16_compress_hook sends gradients in FP16: what is above 65504 becomes inf and"
                " what is below 6e-8 becomes 0, at the loss scale too; bf16_compress_hook has the"
                " range of FP32 (said once)",
            )
    return float(_size(module.process_group))


def _averaged_by_fsdp(part: Any) -> float:
    if getattr(part, "_all_reduce_hook", None) is not None:
        raise BadValueError(
            "an all-reduce hook of fully_shard may leave gradients of any size; remove it, or train"
            " without halfstep."
        )
    factor = part.gradient_divide_factor
    return float(_data_size(part) if factor is None else factor)


def _data_size(part: Any) -> int:
    info = part.mesh_info
    size = 1
    for dim in (info.shard_mesh_dim, info.replicate_mesh_dim):
        if dim is not None:
            size *= info.mesh.size(dim)
    return size


def _mention_timeout(group: Any) -> None:
    try:
        backend = group._get_backend(torch.device("cpu"))
        timeout = backend.options._timeout
    except (RuntimeError, AttributeError):
        return
    if timeout > _LONG:
        _once(
            "timeout",
            "the process group waits %d minutes for a rank that hangs; pass"
            " timeout=timedelta(seconds=...) to init_process_group to hear of it earlier"
            " (said once)",
            timeout.total_seconds() // 60,
        )


_said: set[str] = set()


def _once(key: str, text: str, *values: object) -> None:
    if key not in _said:
        _said.add(key)
        logger.warning(text, *values)


def _listed(values: Iterable[float]) -> str:
    return ", ".join(f"{value:g}" for value in sorted(values))
