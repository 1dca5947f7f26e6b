"""An exception at any point of a window leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import halfstep as hs
from snapshots import differences, snapshot


class Boom(Exception):  # noqa: N818
    """Raised by the test on purpose."""


def make() -> tuple[nn.Sequential, torch.optim.Optimizer, hs.Engine]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return model, optimizer, hs.Engine(model, optimizer, precision="bf16", max_norm=1.0)


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(32, 8, generator=generator)
    return x, torch.randn(32, 1, generator=generator)


def mse(model: nn.Module, data: tuple[Tensor, Tensor]) -> Tensor:
    return F.mse_loss(model(data[0]), data[1])


def in_loader(model: nn.Sequential, optimizer: torch.optim.Optimizer, engine: hs.Engine) -> None:
    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        yield batch()
        raise Boom

    engine.train_step(batches(), mse)


def in_forward(model: nn.Sequential, optimizer: torch.optim.Optimizer, engine: hs.Engine) -> None:
    handle = model[1].register_forward_hook(_raise)
    try:
        engine.train_step([batch()], mse)
    finally:
        handle.remove()


def in_second_loss(
    model: nn.Sequential, optimizer: torch.optim.Optimizer, engine: hs.Engine
) -> None:
    calls = iter([False, True])

    def loss_fn(m: nn.Module, data: tuple[Tensor, Tensor]) -> Tensor:
        if next(calls):
            raise Boom
        return mse(m, data)

    engine.train_step([batch(), batch()], loss_fn)


def in_backward(model: nn.Sequential, optimizer: torch.optim.Optimizer, engine: hs.Engine) -> None:
    handle = model[0].weight.register_hook(_raise)
    try:
        engine.train_step([batch(), batch()], mse)
    finally:
        handle.remove()


def in_optimizer(model: nn.Sequential, optimizer: torch.optim.Optimizer, engine: hs.Engine) -> None:
    handle = optimizer.register_step_pre_hook(_raise)
    try:
        engine.train_step([batch()], mse)
    finally:
        handle.remove()


def in_clip(model: nn.Sequential, optimizer: torch.optim.Optimizer, engine: hs.Engine) -> None:
    slot = engine._update.slots[0]
    slot.max_norm, slot.clip = None, _raise
    try:
        engine.train_step([batch()], mse)
    finally:
        slot.max_norm, slot.clip = 1.0, None


def in_gradients(model: nn.Sequential, optimizer: torch.optim.Optimizer, engine: hs.Engine) -> None:
    with engine.autocast():
        loss = mse(model, batch())
    engine.backward(loss)
    try:
        with engine.gradients():
            raise Boom
    finally:
        engine.abort()


def at_interrupt(model: nn.Sequential, optimizer: torch.optim.Optimizer, engine: hs.Engine) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    handle = model[1].register_forward_hook(interrupted)
    try:
        engine.train_step([batch(), batch()], mse)
    except KeyboardInterrupt as error:
        raise Boom from error
    finally:
        handle.remove()


def _raise(*args: object) -> None:
    raise Boom


POINTS = [
    in_loader,
    in_forward,
    in_second_loss,
    in_backward,
    in_clip,
    in_gradients,
    in_optimizer,
    at_interrupt,
]
Point = Callable[[nn.Sequential, torch.optim.Optimizer, hs.Engine], None]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("steps_before", [0, 2])
def test_exception_in_a_window_moves_nothing_and_ends_the_window(
    point: Point, steps_before: int
) -> None:
    model, optimizer, engine = make()
    for _ in range(steps_before):
        engine.train_step([batch()], mse)
    before = snapshot(model, optimizer, engine)
    with pytest.raises(Boom):
        point(model, optimizer, engine)
    assert differences(before, snapshot(model, optimizer, engine)) == []
    assert all(p.grad is None for p in model.parameters())
    assert not torch.is_autocast_enabled("cpu")
    assert torch.is_autocast_cache_enabled()
    assert "grad_scale" not in optimizer.__dict__
    assert "found_inf" not in optimizer.__dict__


@pytest.mark.parametrize("point", POINTS)
def test_engine_after_an_exception_equals_one_without(point: Point) -> None:
    results = []
    for fails in (False, True):
        model, optimizer, engine = make()
        if fails:
            with pytest.raises(Boom):
                point(model, optimizer, engine)
        for _ in range(3):
            engine.train_step([batch(), batch()], mse)
        results.append(snapshot(model))
    assert differences(results[0], results[1]) == []


def stock_losses() -> list[float]:
    model, optimizer = make()[:2]
    losses = []
    for _ in range(20):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = mse(model, batch())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("point", POINTS)
def test_stock_loop_after_an_exception_trains_as_if_halfstep_had_never_run(point: Point) -> None:
    # an autocast context left open would keep the casts of the first weights for ever
    never_run = stock_losses()
    assert never_run[-1] < 0.9 * never_run[0]
    with pytest.raises(Boom):
        point(*make())
    assert stock_losses() == never_run


def test_abort_after_own_backward_leaves_the_next_window_as_the_first() -> None:
    results = []
    for aborts in (False, True):
        model, _, engine = make()
        if aborts:
            with engine.autocast():
                loss = mse(model, batch()) * 3
            engine.backward(loss)
            engine.abort()
        engine.train_step([batch()], mse)
        results.append(snapshot(model, engine))
    assert differences(results[0], results[1]) == []
