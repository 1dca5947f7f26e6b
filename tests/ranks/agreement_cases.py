"""Cases for `test_agreement`: what two ranks find out together, and what both of them refuse."""

# no `from __future__ import annotations`: torch reads those of a communication hook
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from world import case

import halfstep as hs

WIDTH = 6


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, 2))


def ddp() -> nn.Module:
    return DistributedDataParallel(mlp())


def fsdp() -> nn.Module:
    model = mlp()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for part in (model[0], model):
        fully_shard(part, mesh=mesh)
    return model


MODELS = {"ddp": ddp, "fsdp": fsdp}


def rows(rank: int, count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(10 * seed + rank)
    return torch.randn(count, WIDTH, generator=generator)


def mean_loss(model: nn.Module, x: Tensor) -> Tensor:
    loss: Tensor = model(x).float().square().mean()
    return loss


def loss_sum(model: nn.Module, x: Tensor) -> hs.LossSum:
    return hs.LossSum(model(x).float().square().sum(), len(x))


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def adamw(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def engine_of(model: nn.Module, optimizer: Any = None, **settings: Any) -> hs.Engine:
    return hs.Engine(model, optimizer or sgd(model), **{"precision": "fp32", **settings})


def weights(model: nn.Module) -> list[Tensor]:
    found = (p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters())
    return [p.detach().clone() for p in found]


def error_of(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def _for_each(run: Callable[[Callable[[], nn.Module], int], Any], rank: int) -> dict[str, Any]:
    return {name: run(make, rank) for name, make in MODELS.items()}


# --- what is known together -----------------------------------------------------------------------


@case(2)
def windows_of_other_lengths(rank: int, world: int) -> dict[str, Any]:
    """Two micro-batches on the first rank, one on the second."""
    model = ddp()
    engine = engine_of(model)
    window = hs.Window([rows(rank, 3, 1), rows(rank, 4, 2)][: 2 - rank])
    outcome = engine.train_step(window, loss_sum)
    return {"weights": weights(model), "norm": outcome.grad_norm, "divisor": outcome.record.divisor}


@case(2)
def true_gradients(rank: int, world: int) -> dict[str, Any]:
    def run(make: Callable[[], nn.Module], rank: int) -> Any:
        model = make()
        engine = engine_of(model, loss_scale=64.0)
        with engine.autocast():
            loss = loss_sum(model, rows(rank, 7 + 10 * rank))
        engine.backward(loss)
        with engine.gradients() as gradients:
            found = {
                name: (g.full_tensor() if isinstance(g, DTensor) else g).clone()
                for name, g in gradients.items()
            }
        engine.step()
        return found

    return _for_each(run, rank)


@case(2)
def metrics_and_lost_updates(rank: int, world: int) -> dict[str, Any]:
    def loss(model: nn.Module, x: Tensor) -> hs.LossSum:
        total = model(x).square().sum()
        return hs.LossSum(total, len(x), rows=len(x), ranks=1.0)

    def run(make: Callable[[], nn.Module], rank: int) -> Any:
        model = make()
        with torch.no_grad():
            for p in model.parameters():
                p.add_(2.0**12)  # so large that most updates are lost
        engine = engine_of(model, lost_updates=True)
        outcome = engine.train_step([rows(rank, 3 + rank)], loss)
        return {"metrics": outcome.record.metrics, "lost": outcome.lost_updates}

    return _for_each(run, rank)


@case(2)
def inf_in_one_row(rank: int, world: int) -> dict[str, Any]:
    def run(make: Callable[[], nn.Module], rank: int) -> Any:
        found = {}
        for name, optimizer in (("sgd", sgd), ("adamw", adamw)):
            model = make()
            scale = hs.DynamicLossScale(2.0**10)
            engine = engine_of(model, optimizer(model), loss_scale=scale, max_norm=1.0)
            reasons = []
            for step in range(4):
                x = rows(rank, 4, step)
                if step == 2 and rank == 1:
                    x[0, 0] = torch.inf
                reasons.append(engine.train_step([x], mean_loss).reason)
            found[name] = {
                "reasons": reasons,
                "scale": scale.value.item() if isinstance(scale.value, Tensor) else scale.value,
                "weights": weights(model),
            }
        return found

    return _for_each(run, rank)


@case(2)
def inf_in_one_shard(rank: int, world: int) -> dict[str, Any]:
    """A gradient that is not finite in a part that one rank holds."""
    model = fsdp()
    engine = engine_of(model, adamw(model), loss_scale=hs.DynamicLossScale(2.0**10))
    engine.train_step([rows(rank, 4)], mean_loss)
    before = weights(model)
    engine.backward(mean_loss(model, rows(rank, 4)))
    with engine.gradients() as gradients:
        if rank == 1:
            gradients["0.weight"]._local_tensor.view(-1)[0] = torch.nan
    reason = engine.step().reason
    return {"reason": reason, "before": before, "after": weights(model)}


@case(2)
def stop_with_a_name(rank: int, world: int) -> str:
    model = fsdp()
    engine = engine_of(model, diagnose="raise")
    engine.backward(mean_loss(model, rows(rank, 4)))
    with engine.gradients() as gradients:
        if rank == 1:
            gradients["2.weight"]._local_tensor.view(-1)[0] = torch.nan
    return error_of(engine.step)


@case(2)
def collapse(rank: int, world: int) -> str:
    model = fsdp()
    scale = hs.DynamicLossScale(2.0**10, max_consecutive_skips=3)
    engine = engine_of(model, loss_scale=scale)

    def train() -> None:
        for _ in range(5):
            x = rows(rank, 4)
            if rank == 1:
                x[0, 0] = torch.inf
            engine.train_step([x], mean_loss)

    return error_of(train)


@case(2)
def replay(rank: int, world: int) -> dict[str, Any]:
    model = ddp()
    engine = engine_of(model, diagnose="on_skip", loss_scale=hs.DynamicLossScale(2.0**10))
    x = rows(rank, 4)
    if rank == 1:
        x[2, 0] = torch.inf
    record = engine.train_step([x], mean_loss).record
    assert record.diagnosis is not None
    then = engine.train_step([rows(rank, 4)], mean_loss).updated
    return {"diagnosis": record.diagnosis.to_dict(), "text": str(record.diagnosis), "then": then}


@case(2)
def by_hand(rank: int, world: int) -> dict[str, Any]:
    """Three micro-batches of other sizes in a loop of one's own."""

    def run(make: Callable[[], nn.Module], rank: int) -> Any:
        model = make()
        engine = engine_of(model, max_norm=0.5)
        for number in range(3):
            with engine.micro_batch(is_last=number == 2):
                with engine.autocast():
                    loss = loss_sum(model, rows(rank, 2 + rank + number, number))
                engine.backward(loss)
        outcome = engine.step()
        return {"weights": weights(model), "norm": outcome.grad_norm}

    return _for_each(run, rank)


@case(2)
def averaged_weights(rank: int, world: int) -> dict[str, Any]:
    def run(make: Callable[[], nn.Module], rank: int) -> Any:
        model = make()
        engine = engine_of(model, ema=0.5)
        for step in range(3):
            engine.train_step([rows(rank, 4, step)], mean_loss)
        own = weights(model)
        assert engine.ema is not None
        average = weights(engine.ema)
        with engine.averaged():
            inside = weights(model)
            output = model(rows(0, 4)).detach().clone()
        called = error_of(lambda: engine.ema(rows(0, 4)))  # type: ignore[misc]
        return {
            "own": own,
            "average": average,
            "inside": inside,
            "after": weights(model),
            "output": output,
            "called": called,
        }

    return _for_each(run, rank)


@case(2)
def low_precision_window(rank: int, world: int) -> dict[str, Any]:
    """FP16 over windows of several micro-batches, where casts of weights are kept."""

    def run(make: Callable[[], nn.Module], rank: int) -> Any:
        model = make()
        engine = engine_of(model, adamw(model), precision="fp16", max_norm=1.0)
        reasons = []
        for step in range(6):
            window = hs.Window(rows(rank, 4, 3 * step + number) for number in range(3))
            reasons.append(engine.train_step(window, loss_sum).reason)
        return {"weights": weights(model), "reasons": reasons}

    return _for_each(run, rank)


@case(2)
def hooks_of_communication(rank: int, world: int) -> dict[str, Any]:
    found = {}
    for name in ("fp16_compress_hook", "allreduce_hook"):  # BF16 needs NCCL
        model = DistributedDataParallel(mlp())
        model.register_comm_hook(None, getattr(default_hooks, name))
        engine = engine_of(model)
        engine.train_step([rows(rank, 4)], mean_loss)
        found[name] = weights(model)
    return found


@case(2)
def saved_in_the_background(rank: int, world: int) -> dict[str, Any]:
    """The run goes on while it is written."""
    names: list[Any] = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(names, src=0)

    def run(make: Callable[[], nn.Module], rank: int) -> Any:
        model = make()
        path = f"{names[0]}/{make.__name__}"
        engine = engine_of(model, adamw(model), ema=0.5)
        engine.train_step([rows(rank, 4, 0)], mean_loss)
        at_the_save = weights(model)
        pending = hs.save_checkpoint(path, engine, extra={"save": 1}, wait=False)
        for step in range(1, 4):
            engine.train_step([rows(rank, 4, step)], mean_loss)
        after = weights(model)
        assert pending is not None
        pending.wait()
        found = hs.load_checkpoint(path, engine)
        loaded = weights(model)
        hs.save_checkpoint(path, engine, extra={"save": 2}, wait=False)
        hs.save_checkpoint(path, engine, extra={"save": 3}, wait=False)  # waits for the second
        hs.save_checkpoint(path, engine, extra={"save": 4})
        return {
            "saved": at_the_save,
            "after": after,
            "loaded": loaded,
            "number": found["save"],
            "last": hs.load_checkpoint(path, engine)["save"],
            "num_updates": engine.num_updates,
        }

    return _for_each(run, rank)


# --- what is refused on both ----------------------------------------------------------------------


def _sums_only(state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    future: Any = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return future.then(lambda done: done.value()[0])  # type: ignore[no-any-return]


@case(2)
def refused(rank: int, world: int) -> dict[str, str]:
    model = DistributedDataParallel(mlp())
    model.register_comm_hook(None, _sums_only)
    wrapped = FullyShardedDataParallel(mlp(), device_id=torch.device("cpu"), use_orig_params=True)
    split = [dist.new_group([0]), dist.new_group([1])][rank]
    models = {
        "left": DistributedDataParallel(mlp()),
        "right": DistributedDataParallel(mlp(), process_group=split),
    }
    optimizers = {name: sgd(each) for name, each in models.items()}
    return {
        "alone": error_of(lambda: engine_of(mlp())),
        "own": error_of(lambda: engine_of(mlp(), process_group=False)),
        "by hand": error_of(lambda: engine_of(mlp(), process_group=dist.group.WORLD)),
        "hook": error_of(lambda: engine_of(model)),
        "first fsdp": error_of(lambda: engine_of(wrapped)),
        "replay": error_of(lambda: engine_of(fsdp(), diagnose="on_skip")),
        "groups": error_of(lambda: hs.Engine(models, optimizers, precision="fp32")),
    }


@case(2)
def other_loss_scales(rank: int, world: int) -> dict[str, Any]:
    def run(make: Callable[[], nn.Module], rank: int) -> Any:
        model = make()
        before = weights(model)
        engine = engine_of(model, loss_scale=64.0 * (1 + rank))
        error = error_of(lambda: engine.train_step([rows(rank, 4)], mean_loss))
        again = error_of(lambda: engine.train_step([rows(rank, 4)], mean_loss))
        return {"error": error, "again": again, "before": before, "after": weights(model)}

    return _for_each(run, rank)


@case(2)
def other_kinds_of_loss(rank: int, world: int) -> dict[str, Any]:
    def run(make: Callable[[], nn.Module], rank: int) -> Any:
        engine = engine_of(make())
        return error_of(lambda: engine.train_step([rows(rank, 4)], [mean_loss, loss_sum][rank]))

    return _for_each(run, rank)


@case(2)
def kind_of_loss_that_changes(rank: int, world: int) -> dict[str, Any]:
    def run(make: Callable[[], nn.Module], rank: int) -> Any:
        engine = engine_of(make())
        engine.train_step([rows(rank, 4)], mean_loss)
        return error_of(lambda: engine.train_step([rows(rank, 4)], loss_sum))

    return _for_each(run, rank)


@case(2)
def last_backward_without_exchange(rank: int, world: int) -> dict[str, str]:
    wrapped, sharded = ddp(), fsdp()
    engine = engine_of(wrapped)

    def under_no_sync() -> None:
        with wrapped.no_sync():  # type: ignore[operator]
            engine.backward(mean_loss(wrapped, rows(rank, 4)))
        engine.step()

    found = {"ddp": error_of(under_no_sync)}
    other = engine_of(sharded)

    def never_last() -> None:
        with other.micro_batch(is_last=False):
            other.backward(mean_loss(sharded, rows(rank, 4)))
        other.step()

    found["fsdp"] = error_of(never_last)
    fresh = engine_of(model := ddp())

    def forward_outside() -> None:
        """The forward decides: a backward that is exchanged does not help it."""
        with model.no_sync():  # type: ignore[operator]
            loss = mean_loss(model, rows(rank, 4))
        fresh.backward(loss)
        fresh.step()

    found["forward"] = error_of(forward_outside)
    return found


@case(2)
def gradients_changed_on_one_rank(rank: int, world: int) -> str:
    model = ddp()
    engine = engine_of(model)
    engine.backward(mean_loss(model, rows(rank, 4)))
    with engine.gradients() as gradients:
        if rank:
            gradients["0.weight"].mul_(2)
    return error_of(engine.step)


# --- the drop-in ----------------------------------------------------------------------------------


def _drop_in(make: Callable[[], nn.Module], optimizer: Any, how: str, rank: int) -> dict[str, Any]:
    model = make()
    stepper = optimizer(model)
    scaler = hs.GradScaler("cpu", init_scale=2.0**10)
    skipped = []
    for step in range(5):
        stepper.zero_grad()
        x = rows(rank, 4, step)
        if step == 2 and rank == 1:
            x[0, 0] = torch.inf
        scaler.scale(mean_loss(model, x)).backward()
        if how == "unscale":
            scaler.unscale_(stepper)
        if how == "clip":
            scaler.clip_grad_norm_(stepper, 0.5)
        scaler.step(stepper)
        scaler.update()
        assert scaler.last_outcome is not None
        skipped.append(scaler.last_outcome.skipped)
    return {"weights": weights(model), "skipped": skipped, "scale": scaler.get_scale()}


def fused_adamw(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)


@case(2)
def drop_in(rank: int, world: int) -> dict[str, Any]:
    return {
        f"{name}, {optimizer.__name__}, {how}": _drop_in(make, optimizer, how, rank)
        for name, make in MODELS.items()
        for optimizer in (sgd, adamw, fused_adamw)
        for how in ("plain", "unscale", "clip")
    }


@case(2)
def drop_in_with_other_scales(rank: int, world: int) -> dict[str, Any]:
    def run(make: Callable[[], nn.Module], rank: int) -> Any:
        model = make()
        optimizer = sgd(model)
        before = weights(model)
        scaler = hs.GradScaler("cpu", init_scale=64.0 * (1 + rank))
        scaler.scale(mean_loss(model, rows(rank, 4))).backward()
        error = error_of(lambda: scaler.step(optimizer))
        return {"error": error, "before": before, "after": weights(model)}

    return _for_each(run, rank)
