"""Cases for `test_rank_costs`: what is sent per update, and the road on which no host waits."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import agreement_cases as cases
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from world import case

import halfstep as hs
from halfstep.training.engine import settings
from halfstep.update import OptimizerSlot
from halfstep.update.decision.measured import Measured
from halfstep.update.optimizers.square_sums import Squares
from halfstep.update.ranks.ranks import ONE, Ranks

MICRO_BATCHES = 3


@contextlib.contextmanager
def own_collectives(sizes: list[int]) -> Iterator[None]:
    """Collects the bytes of what Python asks `torch.distributed.all_reduce` for."""
    original: Any = dist.all_reduce

    def counted(tensor: Tensor, *args: Any, **options: Any) -> Any:
        sizes.append(tensor.nbytes)
        return original(tensor, *args, **options)

    dist.all_reduce = counted
    try:
        yield
    finally:
        dist.all_reduce = original


class Collectives(TorchDispatchMode):
    """Counts the collectives of the backend, whoever asks for them.

    torch's `CommDebugMode` counts the same ops, but its module tracker fails under
    DistributedDataParallel.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it asks for its collectives by ops that come here again
        if func.namespace in ("c10d", "_c10d_functional"):
            name = func._schema.name
            for kind in ("scatter", "gather", "reduce"):  # a reduce-scatter is the first of them
                if kind in name:
                    self.counts[kind] = self.counts.get(kind, 0) + 1
                    break
        return func(*args, **(kwargs or {}))


def _counts(run: Callable[[], object]) -> dict[str, Any]:
    sizes: list[int] = []
    with own_collectives(sizes), Collectives() as mode:
        run()
    return {"counts": mode.counts, "sizes": sizes}


def with_metric(model: nn.Module, x: Tensor) -> hs.LossSum:
    return hs.LossSum(model(x).square().sum(), len(x), rows=len(x))


def _windows(rank: int, step: int) -> hs.Window[Tensor]:
    return hs.Window(cases.rows(rank, 4, step + number) for number in range(MICRO_BATCHES))


@case(2)
def collectives(rank: int, world: int) -> dict[str, Any]:
    found = {}
    for name, make in cases.MODELS.items():
        model = make()
        engine = cases.engine_of(model, max_norm=1.0)
        engine.train_step(_windows(rank, 0), cases.loss_sum)
        sums = _counts(lambda e=engine: e.train_step(_windows(rank, 1), cases.loss_sum))
        other = cases.engine_of(model := make(), max_norm=1.0)
        other.train_step(_windows(rank, 0), with_metric)
        metric = _counts(lambda e=other: e.train_step(_windows(rank, 1), with_metric))
        found[name] = {"sums": sums, "metric": metric, "stock": _stock(make, rank)}
    return found


def _stock(make: Callable[[], nn.Module], rank: int) -> dict[str, Any]:
    model = make()
    optimizer = cases.sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)

    def step() -> None:
        optimizer.zero_grad()
        for x in _windows(rank, 1):
            scaler.scale(cases.mean_loss(model, x) / MICRO_BATCHES).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if hasattr(norm, "full_tensor"):
            norm.full_tensor()
        scaler.step(optimizer)
        scaler.update()

    step()
    return _counts(step)


# --- the deferred road, forced on a CPU -----------------------------------------------------------


class DeferredSlot(OptimizerSlot):
    """Takes square sums as on an accelerator, so that the kernel decides wherever it can."""

    def measure(self, ranks: Ranks = ONE) -> Measured:
        found = super().measure(ranks)
        if found.squares is not None:
            found.squares = Squares(*(_there(part) for part in found.squares))
        return found


def _there(part: Any) -> Any:
    is_nothing = isinstance(part, float) and part == 0.0
    return part if is_nothing else torch.tensor(float(part), dtype=torch.float64)


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    settings.OptimizerSlot = DeferredSlot  # type: ignore[misc, attr-defined]
    try:
        yield
    finally:
        settings.OptimizerSlot = OptimizerSlot  # type: ignore[misc, attr-defined]


def _train(make: Callable[[], nn.Module], rank: int, **options: Any) -> dict[str, Any]:
    model = make()
    engine = cases.engine_of(
        model,
        cases.adamw(model),
        max_norm=1.0,
        loss_scale=hs.DynamicLossScale(2.0**10),
        **options,
    )
    outcomes = []
    undecided = 0
    for step in range(6):
        x = cases.rows(rank, 3 + rank, step)
        if step == 3 and rank == 1:
            x[0, 0] = torch.inf
        outcomes.append(engine.train_step([x], cases.loss_sum))
        undecided += engine._update._unsettled is not None
    return {
        "weights": cases.weights(model),
        "undecided": undecided,
        "reasons": [outcome.reason for outcome in outcomes],
        "norms": [outcome.grad_norm for outcome in outcomes],
        "losses": [outcome.loss for outcome in outcomes],
        "scales": [outcome.next_loss_scale for outcome in outcomes],
        "consumed": engine.consumed,
    }


@case(2)
def deferred_road(rank: int, world: int) -> dict[str, Any]:
    found = {}
    for name, make in cases.MODELS.items():
        for schedules in ({}, {"ema": 0.5, "veto": hs.veto.norm_spike(6)}):
            label = f"{name}, {'followers' if schedules else 'plain'}"
            host = _train(make, rank, **schedules)
            with deferred():
                device = _train(make, rank, **schedules)
            found[label] = {"host": host, "device": device}
    return found


@case(2)
def deferred_disagreement(rank: int, world: int) -> dict[str, str]:
    found = {}
    for name, make in cases.MODELS.items():
        with deferred():
            model = make()
            engine = cases.engine_of(model, cases.adamw(model))
        engine.train_step([cases.rows(rank, 4)], cases.mean_loss)
        if rank:
            engine._update.counters.attempts += 1  # as after a step that the other did not make
        outcome = engine.train_step([cases.rows(rank, 4)], cases.mean_loss)
        found[name] = cases.error_of(lambda o=outcome: o.updated)
    return found
