"""Hooks on parameters see true gradients at any scale; optimizers in backward do not run."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import halfstep as hs

SCALES: list[Any] = ["auto", 1024.0, 3.0, hs.DynamicLossScale(64.0)]


def linear() -> nn.Linear:
    model = nn.Linear(4, 1, bias=False)
    nn.init.ones_(model.weight)
    return model


def engine_of(model: nn.Module, scale: Any, **settings: Any) -> hs.Engine:
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return hs.Engine(
        model, optimizer, precision="fp32", loss_scale=copy.deepcopy(scale), **settings
    )


def mean(model: nn.Module, x: Tensor) -> Tensor:
    loss: Tensor = model(x).mean()
    return loss


def clamp(grad: Tensor) -> Tensor:
    return grad.clamp(-0.5, 0.5)


def clamp_in_place(grad: Tensor) -> None:
    grad.clamp_(-0.5, 0.5)


@pytest.mark.parametrize("scale", SCALES, ids=str)
@pytest.mark.parametrize("hook", [clamp, clamp_in_place])
def test_tensor_hook_clamps_the_true_gradient(scale: Any, hook: Callable[[Tensor], Any]) -> None:
    # gradient 3 in each of 4 elements, clamped to 0.5: closed form
    model = linear()
    model.weight.register_hook(hook)
    outcome = engine_of(model, scale).train_step([torch.full((2, 4), 3.0)], mean)
    assert outcome.grad_norm == pytest.approx(1.0)
    assert (1 - model.weight).tolist() == [[pytest.approx(0.5)] * 4]


@pytest.mark.parametrize("scale", SCALES, ids=str)
@pytest.mark.parametrize("as_sum", [False, True])
def test_hooks_are_shown_the_gradient_of_the_micro_batch(scale: Any, as_sum: bool) -> None:
    model, seen = linear(), []
    model.weight.register_hook(lambda grad: seen.append(("before", grad.tolist()[0][0])))
    model.weight.register_post_accumulate_grad_hook(
        lambda p: seen.append(("after", p.grad.tolist()[0][0]))
    )

    def loss_fn(m: nn.Module, x: Tensor) -> Any:
        return hs.LossSum(m(x).sum(), len(x)) if as_sum else mean(m, x)

    engine_of(model, scale).train_step([torch.full((2, 4), 3.0)], loss_fn)
    assert seen == [("before", pytest.approx(3.0)), ("after", pytest.approx(3.0))]


@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_hook_that_only_looks_changes_no_bit(scale: Any) -> None:
    moved = []
    for looks in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        if looks:
            model.weight.register_hook(lambda grad: None)
            model.weight.register_post_accumulate_grad_hook(lambda p: None)
        engine = engine_of(model, scale, max_norm=0.1)
        for _ in range(3):
            engine.train_step([torch.randn(2, 4, generator=torch.Generator().manual_seed(1))], mean)
        moved.append(model.weight.detach().clone())
    assert torch.equal(*moved)


@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_hook_after_accumulation_may_change_or_replace_the_gradient(scale: Any) -> None:
    def in_place(p: Tensor) -> None:
        assert p.grad is not None
        p.grad.clamp_(-0.5, 0.5)

    def replaced(p: Tensor) -> None:
        assert p.grad is not None
        p.grad = p.grad.clamp(-0.5, 0.5)

    for hook in (in_place, replaced):
        model = linear()
        model.weight.register_post_accumulate_grad_hook(hook)
        engine_of(model, scale).train_step([torch.full((2, 4), 3.0)], mean)
        assert (1 - model.weight).tolist() == [[pytest.approx(0.5)] * 4]


def test_hooks_are_the_users_again_after_backward_and_after_an_error() -> None:
    model = linear()

    def hook(grad: Tensor) -> None:
        if float(grad.sum()) > 20:
            raise ValueError("too large")

    handle = model.weight.register_hook(hook)
    engine = engine_of(model, 8.0)
    engine.train_step([torch.ones(2, 4)], mean)
    with pytest.raises(ValueError, match="too large"):
        engine.train_step([torch.full((2, 4), 9.0)], mean)
    assert list(model.weight._backward_hooks.values()) == [hook]  # type: ignore[union-attr]
    handle.remove()
    assert engine.train_step([torch.full((2, 4), 9.0)], mean).updated


def test_hook_that_is_registered_or_removes_itself_in_the_middle_of_a_run_is_seen() -> None:
    model, seen = linear(), []
    engine = engine_of(model, 8.0)
    engine.train_step([torch.ones(2, 4)], mean)

    def once(grad: Tensor) -> None:
        seen.append(grad.tolist()[0][0])
        handle.remove()

    handle = model.weight.register_hook(once)
    for _ in range(2):
        engine.train_step([torch.ones(2, 4)], mean)
    assert seen == [1.0]


@pytest.mark.parametrize("scale", SCALES, ids=str)
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_optimizer_inside_backward_is_refused_before_it_moves(
    scale: Any, kind: type[torch.optim.Optimizer]
) -> None:
    model = nn.Sequential(linear(), nn.Linear(1, 1))
    inner = {p: kind([p], lr=0.1) for p in model.parameters()}  # type: ignore[call-arg]

    def step(p: Tensor) -> None:
        inner[p].step()  # type: ignore[index]
        p.grad = None

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    engine = engine_of(model, scale)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(hs.CallOrderError, match=r"called inside engine.backward\(\), by a hook"):
        engine.train_step([torch.ones(2, 4)], mean)
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))


def test_hook_that_updates_by_hand_is_refused() -> None:
    model = linear()

    def step(p: Tensor) -> None:
        assert p.grad is not None
        p.sub_(p.grad, alpha=0.1)
        p.grad = None

    model.weight.register_post_accumulate_grad_hook(step)
    with pytest.raises(hs.CallOrderError, match=r"'test_hook_that_updates.*on parameter 'weight'"):
        engine_of(model, 8.0).train_step([torch.ones(2, 4)], mean)
