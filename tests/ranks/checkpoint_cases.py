"""Cases for `test_rank_checkpoints`: saved by some ranks, loaded by others.

The folder is named by the environment, as all cases of one test share it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import truth_cases as truth
from torch import Tensor
from torch.distributed.tensor import DTensor
from world import add_case

import halfstep as hs

STEPS = 3
HOW = {
    "ddp": truth._ddp,
    "fsdp": truth._fsdp,
    "hsdp": truth._hsdp,
    "mixed": truth._mixed,
    "tp": truth._tensor_parallel,
    "tp in fsdp": truth._tensor_and_data_parallel,
    "one": lambda model, world: model,
}
SAVED = {1: ["one"], 2: ["ddp", "fsdp", "tp"], 4: ["fsdp", "hsdp", "mixed", "tp in fsdp"]}
OPTIMIZERS = {"adamw": truth.adamw, "sgd": truth.sgd}


def folder() -> Path:
    return Path(os.environ["HALFSTEP_TEST_FOLDER"])


def place(world: int, how: str, optimizer: str) -> Path:
    return folder() / f"{world} {how} {optimizer}"


def build(how: str, world: int, optimizer: str, seed: int = 0) -> hs.Engine:
    net = truth.Net()
    torch.manual_seed(seed)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(torch.randn_like(p) * seed)
    model = HOW[how](net, world)
    return hs.Engine(
        model,
        OPTIMIZERS[optimizer](model.parameters()),
        precision="fp32",
        max_norm=0.7,
        loss_scale=hs.DynamicLossScale(2.0**8, growth_interval=2),
        ema=0.75,
        schedule=hs.warmup_cosine(total=500.0, warmup=50.0),
        veto=hs.veto.norm_spike(6),
    )


def window(step: int) -> list[truth.Batch]:
    """The same rows on every rank, so that runs of all sizes are the same run."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(truth.MOST, truth.WIDTH, generator=generator)
    return [truth.Batch(x, torch.ones(truth.MOST))]


def whole(value: Any) -> Any:
    """Plain tensors in any nesting."""
    if isinstance(value, DTensor):
        return value.full_tensor().detach().clone()
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: whole(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [whole(each) for each in value]
    return value


def plain_names(state: dict[str, Any]) -> dict[str, Any]:
    return {name.removeprefix("module."): value for name, value in state.items()}


def everything(engine: hs.Engine) -> dict[str, Any]:
    """All that a checkpoint holds, whole."""
    state = whole(engine.state_dict())
    averages = {
        name: plain_names(each) | {"n_averaged": each["n_averaged"]}
        for name, each in state.pop("emas").items()
    }
    optimizer = whole(engine.optimizer.state_dict())
    for group in optimizer["param_groups"]:
        for flag in ("fused", "foreach"):
            group.pop(flag, None)
    return {
        "model": plain_names(whole(engine.model.state_dict())),
        "optimizer": optimizer,
        "averages": averages,
        "engine": state,
    }


def _save(how: str, optimizer: str, world: int) -> dict[str, Any]:
    engine = build(how, world, optimizer)
    for step in range(STEPS):
        engine.train_step(window(step), truth.loss_sum)
    hs.save_checkpoint(place(world, how, optimizer), engine, extra={"epoch": 3})
    return everything(engine)


def _load(how: str, optimizer: str, world: int, saved: tuple[int, str]) -> dict[str, Any]:
    engine = build(how, world, optimizer, seed=1)
    engine.train_step(window(9), truth.loss_sum)  # so that there is a state to be replaced
    loaded = hs.load_checkpoint(place(*saved, optimizer), engine)
    found = everything(engine)
    outcome = engine.train_step(window(STEPS), truth.loss_sum)
    return {
        "found": found,
        "extra": dict(loaded),
        "notes": loaded.report.notes,
        "updated": outcome.updated,
        "norm": outcome.grad_norm,
        "weights": [whole(p) for p in engine.model.parameters()],
    }


def _is_saved(how: str, optimizer: str) -> bool:
    return optimizer == "adamw" or how in ("one", "fsdp")


SAVES = [
    (world, how, optimizer)
    for world, hows in SAVED.items()
    for how in hows
    for optimizer in OPTIMIZERS
    if _is_saved(how, optimizer)
]
LOADS = [
    (world, how, optimizer, (saved_world, saved_how))
    for world, how, optimizer in SAVES
    for saved_world, saved_how, saved_optimizer in SAVES
    if saved_optimizer == optimizer
]


def _add_save(world: int, how: str, optimizer: str) -> None:
    name = f"save {world} {how}, {optimizer}"
    add_case(__name__, name, lambda rank, world: _save(how, optimizer, world), world)


def _add_load(world: int, how: str, optimizer: str, saved: tuple[int, str]) -> None:
    name = f"load {saved[0]} {saved[1]} as {world} {how}, {optimizer}"
    add_case(__name__, name, lambda rank, world: _load(how, optimizer, world, saved), world)


for _each in SAVES:
    _add_save(*_each)
for _every in LOADS:
    _add_load(*_every)
