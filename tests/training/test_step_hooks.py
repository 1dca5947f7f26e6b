"""Whoever looks at ``optimizer.step()`` finds true gradients, at any loss scale, fused or not."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

import halfstep as hs

Watch = Callable[[torch.optim.Optimizer, Callable[[], None]], Any]


def _hook(look: Callable[[], None]) -> Callable[..., None]:
    def hook(*arguments: Any) -> None:
        look()

    return hook


def pre_hook(optimizer: torch.optim.Optimizer, look: Callable[[], None]) -> Any:
    return optimizer.register_step_pre_hook(_hook(look))


def global_pre_hook(optimizer: torch.optim.Optimizer, look: Callable[[], None]) -> Any:
    return register_optimizer_step_pre_hook(_hook(look))


def post_hook(optimizer: torch.optim.Optimizer, look: Callable[[], None]) -> Any:
    return optimizer.register_step_post_hook(_hook(look))


def global_post_hook(optimizer: torch.optim.Optimizer, look: Callable[[], None]) -> Any:
    return register_optimizer_step_post_hook(_hook(look))


def patched_step(optimizer: torch.optim.Optimizer, look: Callable[[], None]) -> None:
    original = optimizer.step

    def step(self: torch.optim.Optimizer, closure: None = None) -> Any:
        look()
        return original()

    optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]


def patched_step_below_a_schedule(
    optimizer: torch.optim.Optimizer, look: Callable[[], None]
) -> None:
    patched_step(optimizer, look)
    torch.optim.lr_scheduler.StepLR(optimizer, 100)  # wraps the patched method once more


BEFORE = [pre_hook, global_pre_hook, patched_step, patched_step_below_a_schedule]
AFTER = [post_hook, global_post_hook]
SETTINGS: list[dict[str, Any]] = [{"fuse": "auto"}, {"fuse": False}]


@pytest.fixture
def watched() -> Iterator[Callable[..., None]]:
    handles: list[Any] = []

    def watch(kind: Watch, optimizer: torch.optim.Optimizer, look: Callable[[], None]) -> None:
        handles.append(kind(optimizer, look))

    yield watch
    for handle in handles:
        if handle is not None:
            handle.remove()


def make(scale: float, **settings: Any) -> tuple[nn.Linear, torch.optim.Optimizer, hs.Engine]:
    model = nn.Linear(4, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return (
        model,
        optimizer,
        hs.Engine(model, optimizer, precision="fp16", loss_scale=scale, **settings),
    )


def mean(model: nn.Module, x: Tensor) -> Tensor:
    loss: Tensor = model(x).float().mean()
    return loss


@pytest.mark.parametrize("kind", BEFORE)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("scale", [1.0, 3.0, 1024.0])
@pytest.mark.parametrize("steps_before", [0, 2])
def test_clip_in_front_of_the_step_has_its_fp32_meaning(
    watched: Any, kind: Watch, settings: dict[str, Any], scale: float, steps_before: int
) -> None:
    # the true norm is 6, so that a clip at 1 makes an update of length 1
    model, optimizer, engine = make(scale, **settings)
    for _ in range(steps_before):
        engine.train_step([torch.full((2, 4), 3.0)], mean)
    watched(kind, optimizer, lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0))
    before = model.weight.detach().clone()
    engine.train_step([torch.full((2, 4), 3.0)], mean)
    assert float((before - model.weight.detach()).norm()) == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize("kind", [*BEFORE, *AFTER])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_hook_reads_true_and_clipped_gradients(
    watched: Any, kind: Watch, settings: dict[str, Any]
) -> None:
    model, optimizer, engine = make(1024.0, max_norm=2.0, **settings)
    seen: list[float] = []

    def look() -> None:
        assert model.weight.grad is not None
        seen.append(float(model.weight.grad.norm()))

    watched(kind, optimizer, look)
    for _ in range(2):
        engine.train_step([torch.full((2, 4), 3.0)], mean)
    assert seen == [pytest.approx(2.0, rel=1e-5)] * 2


@pytest.mark.parametrize("kind", [*BEFORE, *AFTER])
def test_hook_is_not_called_for_a_skipped_step(watched: Any, kind: Watch) -> None:
    _, optimizer, engine = make(1024.0)
    calls: list[int] = []
    watched(kind, optimizer, lambda: calls.append(1))
    assert engine.train_step([torch.full((2, 4), float("inf"))], mean).skipped
    assert calls == []


def test_step_of_the_class_that_was_replaced_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _, engine = make(1024.0)
    engine.train_step([torch.ones(2, 4)], mean)
    real, seen = torch.optim.SGD.step, []

    def step(self: torch.optim.SGD, closure: None = None) -> Any:
        assert model.weight.grad is not None
        seen.append(model.weight.grad.tolist()[0][0])
        return real(self)

    monkeypatch.setattr(torch.optim.SGD, "step", step)
    engine.train_step([torch.ones(2, 4)], mean)
    assert seen == [1.0]
