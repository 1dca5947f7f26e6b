"""Cases for `test_rank_truth`: every way to spread a model, every way to update it.

Each rank has other micro-batches, with other numbers of valid tokens, and some have none. What they
compute together is compared with one process in float64 that has all rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from world import add_case

import halfstep as hs

WIDTH, STEPS = 8, 5
# Valid rows for each step: rank -> those of its micro-batches. Other totals, other first
# micro-batches, and a rank without any.
ROWS = {
    2: [[[3, 4], [9, 8]], [[2, 0], [8, 5]], [[0, 0], [4, 3]], [[6, 1], [1, 6]], [[5, 5], [5, 5]]],
    4: [
        [[3, 4], [9, 8], [1, 1], [2, 5]],
        [[2, 0], [8, 5], [7, 7], [1, 2]],
        [[0, 0], [4, 3], [0, 2], [6, 6]],
        [[6, 1], [1, 6], [0, 0], [0, 0]],
        [[5, 5], [5, 5], [5, 5], [5, 5]],
    ],
    1: [[[3, 4]], [[2, 0]], [[1, 2]], [[6, 1]], [[5, 5]]],
}
MOST = 10


class Net(nn.Module):
    """Two blocks and a head; the blocks are sharded one by one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(WIDTH, 16)
        self.norm = nn.LayerNorm(16)
        self.second = nn.Linear(16, WIDTH)
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.second(self.norm(self.first(x)).tanh())
        result: Tensor = self.head(hidden.tanh())
        return result


class Batch(NamedTuple):
    x: Tensor
    mask: Tensor


def batches(step: int, shards: int) -> list[list[Batch]]:
    """Rank to micro-batches."""
    found = []
    for rank, counts in enumerate(ROWS[shards][step]):
        own = []
        for number, count in enumerate(counts):
            generator = torch.Generator().manual_seed(1000 * step + 10 * rank + number)
            mask = torch.zeros(MOST)
            mask[:count] = 1
            own.append(Batch(torch.randn(MOST, WIDTH, generator=generator), mask))
        found.append(own)
    return found


def loss_sum(model: nn.Module, batch: Batch) -> hs.LossSum:
    errors = (model(batch.x).squeeze(1) - batch.x.sum(1)).square()
    return hs.LossSum((errors * batch.mask).sum(), batch.mask.sum())


def full(tensor: Tensor) -> Tensor:
    whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return whole.detach().clone()


# --- ways to spread a model -----------------------------------------------------------------------


def _ddp(model: Net, world: int) -> nn.Module:
    return DistributedDataParallel(model)


def _ddp_static(model: Net, world: int) -> nn.Module:
    return DistributedDataParallel(model, static_graph=True)


def _ddp_views(model: Net, world: int) -> nn.Module:
    return DistributedDataParallel(model, gradient_as_bucket_view=True, find_unused_parameters=True)


def _fsdp(model: Net, world: int) -> nn.Module:
    mesh = init_device_mesh("cpu", (world,))
    for part in (model.first, model.second, model):
        fully_shard(part, mesh=mesh)
    return model


def _hsdp(model: Net, world: int) -> nn.Module:
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
    for part in (model.first, model.second, model):
        fully_shard(part, mesh=mesh)
    return model


def _mixed(model: Net, world: int) -> nn.Module:
    """One block over all ranks, one over half of them and replicated over the rest."""
    whole = init_device_mesh("cpu", (world,))
    halves = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
    fully_shard(model.first, mesh=halves)
    fully_shard(model.second, mesh=whole)
    fully_shard(model, mesh=whole)
    return model


def _tensor_parallel(model: Net, world: int) -> nn.Module:
    """Every rank sees the same batch; the LayerNorm and the head are plain parameters."""
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
    parallelize_module(model, mesh, _plan())
    return model


def _plan() -> dict[str, Any]:
    return {
        "first": ColwiseParallel(output_layouts=Replicate()),
        "second": RowwiseParallel(input_layouts=Replicate()),
    }


def _tensor_and_data_parallel(model: Net, world: int) -> nn.Module:
    mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("data", "tp"))
    parallelize_module(model, mesh["tp"], _plan())
    for part in (model.first, model.second, model):
        fully_shard(part, mesh=mesh["data"])
    return model


WRAPPERS = {
    "ddp": (_ddp, (2, 4), 1),
    "ddp, static graph": (_ddp_static, (2,), 1),
    "ddp, bucket views": (_ddp_views, (2,), 1),
    "fsdp": (_fsdp, (2, 4), 1),
    "hsdp": (_hsdp, (4,), 1),
    "mixed meshes": (_mixed, (4,), 1),
    "tp": (_tensor_parallel, (2,), 2),
    "tp in fsdp": (_tensor_and_data_parallel, (4,), 2),
}

# --- ways to update it ----------------------------------------------------------------------------

DECAY, MAX_NORM = 0.75, 0.7


def is_large(facts: hs.veto.Facts) -> Tensor:
    return facts.loss > 8.0


def total_tokens(shards: int) -> float:
    return float(sum(sum(map(sum, step)) for step in ROWS[shards]))


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2, eps=1e-4)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=3e-2, momentum=0.9)


def adagrad(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adagrad(parameters, lr=1e-2, eps=1e-4)


@dataclass(frozen=True)
class Way:
    """How to update.

    Attributes:
        optimizer: Makes it.
        settings: Of the engine.
        is_two: Whether the blocks have an optimizer each.
        schedules: Whether tokens move the rate.
    """

    optimizer: Any = adamw
    settings: dict[str, Any] = field(default_factory=dict)
    is_two: bool = False
    schedules: bool = False


WAYS = {
    "adamw": Way(),
    "adamw, clip": Way(settings={"max_norm": MAX_NORM}),
    "sgd, clip, average": Way(sgd, {"max_norm": MAX_NORM, "ema": DECAY}),
    "adagrad": Way(adagrad),
    "sgd, tokens": Way(sgd, schedules=True),
    "adamw, veto": Way(settings={"veto": is_large}),
    "two, joint": Way(settings={"max_norm": hs.Joint(MAX_NORM)}, is_two=True),
    "adamw, unfused": Way(settings={"fuse": False, "max_norm": MAX_NORM}),
    "every micro-batch": Way(settings={"gradient_sync": "micro_batch", "max_norm": MAX_NORM}),
}


def parts(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Parameters of the first block, and the others."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    own = set(inner.first.parameters())
    return list(inner.first.parameters()), [p for p in inner.parameters() if p not in own]


def rates(shards: int) -> hs.TokenSchedule:
    return hs.warmup_cosine(total=total_tokens(shards), warmup=20.0)


def _run(wrapper: Any, way: Way, copies: int, rank: int, world: int) -> dict[str, Any]:
    shards = world // copies
    model = wrapper(Net(), world)
    if way.is_two:
        optimizer: Any = {
            name: way.optimizer(own)
            for name, own in zip(("first", "rest"), parts(model), strict=True)
        }
    else:
        optimizer = way.optimizer(model.parameters())
    settings = dict(way.settings)
    if way.schedules:
        settings["schedule"] = rates(shards)
    engine = hs.Engine(model, optimizer, precision="fp32", **settings)
    outcomes = []
    for step in range(STEPS):
        own = batches(step, shards)[rank // copies]
        outcomes.append(engine.train_step(hs.Window(own), loss_sum))
    result = {
        "parameters": {n.removeprefix("module."): full(p) for n, p in model.named_parameters()},
        "norms": [outcome.grad_norm for outcome in outcomes],
        "losses": [outcome.loss for outcome in outcomes],
        "reasons": [outcome.reason for outcome in outcomes],
        "divisors": [outcome.record.divisor for outcome in outcomes],
        "consumed": engine.consumed,
    }
    if isinstance(engine.ema, torch.optim.swa_utils.AveragedModel):
        result["average"] = [full(p) for p in engine.ema.parameters()]
    return result


def _add(wrapper_name: str, way_name: str) -> None:
    wrapper, worlds, copies = WRAPPERS[wrapper_name]
    add_case(
        __name__,
        f"{wrapper_name}: {way_name}",
        lambda rank, world: _run(wrapper, WAYS[way_name], copies, rank, world),
        *worlds,
    )


for _wrapper in WRAPPERS:
    for _way in WAYS:
        _add(_wrapper, _way)
