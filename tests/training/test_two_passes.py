"""Losses that the user scales: gradient caching, penalties, an own backward."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import halfstep as hs

EPS = torch.finfo(torch.float32).eps
X = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
Y = torch.arange(16) % 4
SCALES: list[Any] = ["auto", 256.0, hs.DynamicLossScale(2.0**10)]


def make(scale: Any, precision: str = "fp32", **settings: Any) -> tuple[nn.Sequential, hs.Engine]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, hs.Engine(
        model, optimizer, precision=precision, loss_scale=copy.deepcopy(scale), **settings
    )


def wide_gradients(loss_of: Any) -> list[Tensor]:
    """Oracle: float64, one backward over everything."""
    model, _ = make("auto")
    wide = model.double()
    loss_of(wide, X.double()).backward()
    return [p.grad for p in wide.parameters() if p.grad is not None]


def close(found: list[Tensor], right: list[Tensor]) -> bool:
    norm = torch.linalg.vector_norm(torch.stack([g.norm() for g in right]))
    return all(
        float((f.double() - r).norm() / norm) < 64 * EPS for f, r in zip(found, right, strict=True)
    )


@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_gradient_cache_equals_the_whole_batch(scale: Any) -> None:
    right = wide_gradients(lambda m, x: F.cross_entropy(m(x), Y))
    model, engine = make(scale)
    with torch.no_grad(), engine.autocast():
        cached = torch.cat([model(part) for part in X.split(4)])
    cached = cached.float().requires_grad_()
    engine.scale(F.cross_entropy(cached, Y)).backward()
    assert cached.grad is not None
    for part, grad in zip(X.split(4), cached.grad.split(4), strict=True):
        with engine.autocast():
            out = model(part)
        (out.float() * grad).sum().backward()
    with engine.gradients() as grads:
        assert close(list(grads.values()), right)
    outcome = engine.step()
    assert outcome.updated
    assert outcome.loss == pytest.approx(F.cross_entropy(make("auto")[0](X), Y).item())


@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_obvious_conversion_of_a_gradient_cache_is_refused(scale: Any) -> None:
    model, engine = make(scale)
    cached = model(X).detach().requires_grad_()
    with pytest.raises(hs.CallOrderError, match=r"engine\.scale\(loss\)\.backward\(\)"):
        engine.backward(F.cross_entropy(cached, Y))


@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_own_backward_of_two_terms_adds_them(scale: Any) -> None:
    right = wide_gradients(lambda m, x: F.cross_entropy(m(x), Y) + m(x).square().mean())
    model, engine = make(scale)
    engine.scale(F.cross_entropy(model(X), Y)).backward()
    engine.scale(model(X).square().mean()).backward()
    with engine.gradients() as grads:
        assert close(list(grads.values()), right)
    assert engine.step().updated


@pytest.mark.parametrize("scale", SCALES, ids=str)
@pytest.mark.parametrize("kind", ["R1", "WGAN-GP"])
def test_penalty_on_an_inner_gradient_equals_float64(scale: Any, kind: str) -> None:
    def inner_norm(x: Tensor, scores: Tensor, factor: Any = 1.0, by: Any = 1.0) -> Tensor:
        (grad,) = torch.autograd.grad(scores * factor, x, create_graph=True)
        norms = (grad / by).float().flatten(1).norm(dim=1)
        return norms.square().mean() if kind == "R1" else (norms - 1).square().mean()

    def wide(model: nn.Module, x: Tensor) -> Tensor:
        x = x.requires_grad_()
        scores = model(x).sum()
        (grad,) = torch.autograd.grad(scores, x, create_graph=True)
        norms = grad.flatten(1).norm(dim=1)
        penalty = norms.square().mean() if kind == "R1" else (norms - 1).square().mean()
        return scores / 16 + penalty

    right = wide_gradients(wide)
    model, engine = make(scale)

    def loss_fn(m: nn.Module, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        scores = m(x).float().sum()
        (scaled,) = torch.autograd.grad(engine.scale(scores), x, create_graph=True)
        norms = (scaled / engine.loss_scale.value).float().flatten(1).norm(dim=1)
        penalty = norms.square().mean() if kind == "R1" else (norms - 1).square().mean()
        return scores / 16 + penalty

    engine.backward(loss_fn(model, X))
    with engine.gradients() as grads:
        assert close(list(grads.values()), right)
    assert engine.step().updated


def test_overflow_in_an_own_window_is_a_skip_and_backs_off() -> None:
    model, engine = make(hs.DynamicLossScale(2.0**10))
    before = [p.detach().clone() for p in model.parameters()]
    engine.scale(model(X).mean() * float("inf")).backward()
    outcome = engine.step()
    assert (outcome.reason, outcome.next_loss_scale) == ("non_finite", 2.0**9)
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))


def test_scale_alone_is_no_window() -> None:
    model, engine = make(4.0)
    engine.scale(model(X).mean())
    with pytest.raises(hs.CallOrderError, match="without backward"):
        engine.step()
    engine.state_dict()


def test_own_gradients_and_the_engines_do_not_mix() -> None:
    model, engine = make(4.0)
    engine.scale(model(X).mean()).backward()
    with pytest.raises(hs.CallOrderError, match=r"your own backward through engine\.scale\(\)"):
        engine.backward(model(X).mean())
    engine.abort()
    engine.backward(model(X).mean())
    assert engine.step().updated


@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_second_pass_by_the_engines_backward_is_refused(scale: Any) -> None:
    model, engine = make(scale)
    cached = model(X).detach().requires_grad_()
    engine.scale(F.cross_entropy(cached, Y)).backward()
    assert cached.grad is not None
    surrogate = (model(X) * cached.grad).sum()
    with pytest.raises(hs.CallOrderError, match=r"your own backward through engine\.scale\(\)"):
        engine.backward(surrogate)


def test_loss_that_engine_scale_made_is_refused_by_engine_backward() -> None:
    model, engine = make(8.0)
    with pytest.raises(hs.CallOrderError, match="scales the loss itself"):
        engine.backward(engine.scale(model(X).mean()))
    with pytest.raises(hs.CallOrderError, match="scales the loss itself"):
        engine.train_step([X], lambda m, x: engine.scale(m(x).mean()))
    engine.train_step([X], lambda m, x: m(x).mean())


def test_scale_is_float32_of_any_shape_and_keeps_the_graph() -> None:
    model, engine = make(2.0**17)
    scaled = engine.scale(model(X).half())
    assert (scaled.dtype, scaled.shape, scaled.requires_grad) == (torch.float32, (16, 4), True)
    assert torch.equal(scaled, model(X).half().float() * 2.0**17)


@pytest.mark.parametrize("value", [3.0, torch.ones(2, dtype=torch.int64), None])
def test_scale_of_something_else_is_refused(value: Any) -> None:
    _, engine = make(4.0)
    with pytest.raises(TypeError, match="scale\\(\\) takes a real floating-point tensor"):
        engine.scale(value)


def test_scale_that_is_shared_stays_while_an_own_window_is_open() -> None:
    # the other optimizer's overflow must not change what the open gradients are divided by
    models = {name: nn.Linear(2, 1, bias=False) for name in ("a", "b")}
    optimizers = {n: torch.optim.SGD(m.parameters(), lr=1.0) for n, m in models.items()}
    engine = hs.Engine(models, optimizers, precision="fp32", loss_scale=hs.DynamicLossScale(8.0))
    engine.scale(models["a"](torch.ones(1, 2)).sum(), "a").backward()
    engine.backward(models["b"](torch.full((1, 2), float("inf"))).sum(), "b")
    assert engine.step("b").reason == "non_finite"
    before = models["a"].weight.detach().clone()
    engine.step("a")
    assert (before - models["a"].weight).tolist() == [[pytest.approx(1.0)] * 2]


def test_losses_of_steps_that_are_over_are_forgotten() -> None:
    model, engine = make(4.0)
    for _ in range(5):
        engine.scale(model(X).mean()).backward()
        engine.step()
    assert engine._backward._scaled == []
