"""What each of two processes runs for `test_several_processes`: one pair for all cases.

A case returns what it saw; the tests compare that between the processes and with an oracle.
"""

from __future__ import annotations

import datetime
import logging
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from small_recipes import SMALL
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import halfstep as hs
from snapshots import differences, snapshot

WORLD = 2
ROWS, WIDTH = 8, 6  # of the global batch; each process has half of the rows
STEPS, BAD_STEP = 6, 2  # the step at which one process has an inf in its batch
DECAY, RATE, MAX_NORM = 0.9, 0.1, 0.5

Case = Callable[[int], Any]
BEFORE_A_GROUP: dict[str, Case] = {}
WITH_A_GROUP: dict[str, Case] = {}


def before_a_group(case: Case) -> Case:
    BEFORE_A_GROUP[case.__name__] = case
    return case


def with_a_group(case: Case) -> Case:
    WITH_A_GROUP[case.__name__] = case
    return case


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, 1))


def global_batches() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    batches = [torch.randn(ROWS, WIDTH, generator=generator) for _ in range(STEPS)]
    batches[BAD_STEP][-1, 0] = torch.inf  # in the half of the last process
    return batches


def own_half(batch: Tensor, rank: int) -> Tensor:
    return batch.chunk(WORLD)[rank]


def mean_loss(model: nn.Module, x: Tensor) -> Tensor:
    loss: Tensor = model(x).float().square().mean()
    return loss


def loss_sum(model: nn.Module, x: Tensor) -> hs.LossSum:
    return hs.LossSum(model(x).square().sum(), len(x))


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)


def adamw(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def engine_of(model: nn.Module, optimizer: Any = None, **settings: Any) -> hs.Engine:
    return hs.Engine(model, optimizer or sgd(model), **{"precision": "fp32", **settings})


def refused(call: Callable[[], object], *owners: Any) -> dict[str, Any]:
    """The error of a call, and what it moved."""
    before = snapshot(*owners)
    try:
        call()
    except hs.HalfstepError as error:
        moved = differences(before, snapshot(*owners))
        return {"type": type(error).__name__, "text": str(error), "moved": moved}
    return {"type": "none", "text": "nothing was refused", "moved": []}


class Said(logging.Handler):
    """The warnings of halfstep's log inside a ``with``."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def __enter__(self) -> Said:
        logging.getLogger("halfstep").addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        logging.getLogger("halfstep").removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def loss_is_absurd(facts: hs.veto.Facts) -> Tensor:
    return facts.loss > 100


# --- before a group of two -------------------------------------------------------------------


def _a_run(wrap: Callable[[nn.Module], nn.Module]) -> list[Any]:
    """Everything that several processes refuse, in one."""
    model = wrap(mlp())
    engine = engine_of(
        model,
        max_norm=MAX_NORM,
        loss_scale=hs.DynamicLossScale(init_scale=2.0**10),
        schedule=hs.warmup_cosine(total=40, warmup=8),
        veto=[hs.veto.norm_spike(6), loss_is_absurd],
        ema=DECAY,
        diagnose="on_skip",
    )
    records = [engine.train_step([batch], loss_sum).record for batch in global_batches()]
    weights = [p.detach().clone() for p in model.parameters()]
    averages = [p.detach().clone() for p in engine.ema.parameters()]  # type: ignore[union-attr]
    numbers = [(r.loss, r.grad_norm, r.next_loss_scale, r.lr, r.reason) for r in records]
    return [weights, averages, repr(numbers)]


@before_a_group
def world_of_one(rank: int) -> dict[str, Any]:
    alone = _a_run(lambda model: model)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with Said() as said:
        grouped = _a_run(lambda model: model)
        wrapped = _a_run(DistributedDataParallel)
    run = hs.fit(SMALL, precision="fp32", steps=1)
    dist.destroy_process_group()
    return {
        "grouped": differences(alone, grouped),
        "wrapped": differences(alone, wrapped),
        "fit": run.status,
        "numbers": alone[2],
        "said": said.lines,
    }


class TwoParts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body: nn.Module = nn.Linear(WIDTH, 16)
        self.head = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.body(x).tanh())
        return result


BUILT_EARLY: dict[str, tuple[nn.Module, Any, hs.Engine]] = {}


@before_a_group
def engines_built_early(rank: int) -> int:
    for name in ("plain", "wrapped later"):
        model = TwoParts()
        optimizer = sgd(model)
        BUILT_EARLY[name] = (model, optimizer, engine_of(model, optimizer))
    return len(BUILT_EARLY)


# --- with a group of two ---------------------------------------------------------------------


@with_a_group
def group_made_after_the_engine(rank: int) -> dict[str, Any]:
    x = own_half(global_batches()[0], rank)
    _, _, engine = BUILT_EARLY["plain"]
    alone = refused(lambda: engine.train_step([x], mean_loss))
    model, optimizer, engine = BUILT_EARLY["wrapped later"]
    model.body = DistributedDataParallel(model.body)
    step = refused(lambda: engine.train_step([x], mean_loss), model, optimizer, engine)
    again = refused(lambda: engine.train_step([x], mean_loss), model, optimizer, engine)
    return {"alone": alone, "step": step, "again": again}


@with_a_group
def mean_losses(rank: int) -> dict[str, Any]:
    """Skip, clipping, two micro-batches, schedule, average and lost updates."""
    model = DistributedDataParallel(mlp())
    optimizer = sgd(model)
    engine = engine_of(
        model,
        optimizer,
        max_norm=MAX_NORM,
        loss_scale=hs.DynamicLossScale(init_scale=2.0**10),
        schedule=torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
        veto=hs.veto.norm_spike(6),
        ema=DECAY,
        lost_updates=True,
    )
    outcomes = []
    for batch in global_batches():
        halves = hs.Window(own_half(batch, rank).chunk(2))
        outcomes.append(engine.train_step(halves, mean_loss))
    assert engine.ema is not None
    return {
        "weights": [p.detach() for p in model.parameters()],
        "averages": [p.detach() for p in engine.ema.parameters()],
        "norms": torch.tensor([outcome.grad_norm for outcome in outcomes], dtype=torch.float64),
        "reasons": [outcome.reason for outcome in outcomes],
        "scales": [outcome.next_loss_scale for outcome in outcomes],
        "lost": [outcome.lost_updates for outcome in outcomes],
        "lr": optimizer.param_groups[0]["lr"],
        "num_updates": engine.num_updates,
    }


@with_a_group
def fp16_with_a_fused_optimizer(rank: int) -> dict[str, Any]:
    model = DistributedDataParallel(mlp(), gradient_as_bucket_view=True)
    engine = engine_of(model, adamw(model), precision="fp16", max_norm=MAX_NORM)
    outcomes = [engine.train_step([own_half(batch, rank)], mean_loss) for batch in global_batches()]
    return {
        "weights": [p.detach() for p in model.parameters()],
        "reasons": [outcome.reason for outcome in outcomes],
        "norms": torch.tensor([outcome.grad_norm for outcome in outcomes], dtype=torch.float64),
    }


@with_a_group
def buffers_are_rolled_back(rank: int) -> dict[str, Any]:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(WIDTH, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    model = DistributedDataParallel(inner)
    engine = engine_of(model, buffers="rollback")
    good, *_ = batches = global_batches()
    engine.train_step([own_half(good, rank)], mean_loss)
    before = snapshot(model)
    outcome = engine.train_step([own_half(batches[BAD_STEP], rank)], mean_loss)
    moved = differences(before, snapshot(model))
    engine.train_step([own_half(good, rank)], mean_loss)
    return {
        "reason": outcome.reason,
        "moved": moved,
        "weights": [p.detach() for p in model.parameters()],
    }


@with_a_group
def stop_at_an_inf(rank: int) -> dict[str, Any]:
    model = DistributedDataParallel(mlp())
    optimizer = sgd(model)
    engine = engine_of(model, optimizer, diagnose="raise")
    good, *_ = batches = global_batches()
    engine.train_step([own_half(good, rank)], mean_loss)
    bad = own_half(batches[BAD_STEP], rank)
    return refused(lambda: engine.train_step([bad], mean_loss), model, optimizer)


@with_a_group
def two_wrapped_models(rank: int) -> list[Tensor]:
    models = {name: DistributedDataParallel(mlp()) for name in ("left", "right")}
    optimizers = {name: sgd(model) for name, model in models.items()}
    engine = hs.Engine(models, optimizers, precision="fp32")
    for name in ("left", "right", "left"):
        for batch in global_batches()[:2]:
            x = own_half(batch, rank)
            engine.train_step([x], lambda m, x, name=name: mean_loss(m[name], x), name)
    return [p.detach() for model in models.values() for p in model.parameters()]


@with_a_group
def drop_in_with_mean_losses(rank: int) -> dict[str, Any]:
    model = DistributedDataParallel(mlp())
    optimizer = sgd(model)
    scaler = hs.GradScaler("cpu", init_scale=2.0**10)
    skipped = []
    for batch in global_batches():
        optimizer.zero_grad()
        scaler.scale(mean_loss(model, own_half(batch, rank))).backward()
        scaler.clip_grad_norm_(optimizer, MAX_NORM)
        scaler.step(optimizer)
        scaler.update()
        assert scaler.last_outcome is not None
        skipped.append(scaler.last_outcome.skipped)
    return {"weights": [p.detach() for p in model.parameters()], "skipped": skipped}


@with_a_group
def refused_parameters_outside(rank: int) -> dict[str, Any]:
    model = TwoParts()
    model.body = DistributedDataParallel(model.body)
    beside = refused(lambda: engine_of(model), model)
    model.head.requires_grad_(False)
    optimizer = sgd(model.body)
    frozen = refused(lambda: engine_of(model, optimizer), model)
    ignoring = mlp()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(ignoring, ["2.bias"])
    ignored = refused(lambda: engine_of(DistributedDataParallel(ignoring)), ignoring)
    models = {"left": DistributedDataParallel(mlp()), "right": mlp()}
    optimizers = {name: sgd(each) for name, each in models.items()}
    named = refused(lambda: hs.Engine(models, optimizers, precision="fp32"), *models.values())
    return {"beside": beside, "frozen": frozen, "ignored": ignored, "named": named}


@with_a_group
def refused_part_of_a_wrapper(rank: int) -> dict[str, Any]:
    model = DistributedDataParallel(mlp())
    optimizers = {"first": sgd(model.module[0]), "last": sgd(model.module[2])}
    engine = hs.Engine(model, optimizers, precision="fp32")
    x = own_half(global_batches()[0], rank)
    part = refused(lambda: engine.train_step([x], mean_loss, "first"), model, engine)
    engine = hs.Engine(model, optimizers, precision="fp32")  # the first one has told its peers
    together = engine.train_step([x], mean_loss).updated
    return {"part": part, "together": together, "weights": [p.detach() for p in model.parameters()]}


@with_a_group
def refused_fit(rank: int) -> dict[str, Any]:
    return refused(lambda: hs.fit(SMALL, steps=1))


def _run(case: Case, rank: int) -> Any:
    try:
        return case(rank)
    except Exception:
        return f"FAILED: {traceback.format_exc()}"


def main(rank: int, folder: Path) -> None:
    """Run every case and write what they returned to ``<rank>.pt``."""
    torch.set_num_threads(1)
    found = {name: _run(case, rank) for name, case in BEFORE_A_GROUP.items()}
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(str(folder / "store"), WORLD),
        rank=rank,
        world_size=WORLD,
        timeout=datetime.timedelta(seconds=20),
    )
    for name, case in WITH_A_GROUP.items():
        found[name] = _run(case, rank)
        torch.save(found, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # works without a network
    main(int(sys.argv[1]), Path(sys.argv[2]))
