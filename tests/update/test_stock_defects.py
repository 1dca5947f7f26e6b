"""What stock torch does silently, and what halfstep does instead.

Each test shows the defect in torch first, so that it says so when torch mends it.
"""

from __future__ import annotations

import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim.lr_scheduler import StepLR

import halfstep as hs
from halfstep.update import Window
from updates import one_update, run_update


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(32, 8, generator=generator), torch.randn(32, 1, generator=generator)


def mse(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.mse_loss(model(batch[0]), batch[1])


def one_mean_window() -> Window:
    window = Window()
    window.add(torch.zeros(()), None, {})
    return window


def stock_scaler(optimizer: torch.optim.Optimizer, scale: float = 1024.0) -> torch.amp.GradScaler:
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    scaler.scale(torch.ones(()))
    return scaler


def test_autocast_around_the_loop_still_learns() -> None:
    def losses(use_engine: bool) -> list[float]:
        model, found = mlp(), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        engine = hs.Engine(model, optimizer, precision="bf16") if use_engine else None
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for _ in range(30):
                loss = mse(model, data())
                found.append(loss.item())
                if engine is not None:
                    engine.backward(loss)
                    engine.step()
                else:
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
        return found

    stock, ours = losses(False), losses(True)
    assert stock[0] == stock[-1]  # the cached casts of the first weights
    assert ours[-1] < 0.9 * ours[0]


def test_gradients_that_break_after_unscaling_are_checked_again() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = stock_scaler(optimizer)
    scaler.scale(mse(model, data())).backward()
    scaler.unscale_(optimizer)
    model[0].weight.grad.fill_(math.nan)
    scaler.step(optimizer)
    assert model[0].weight.isnan().all()

    model = mlp()
    before = model[0].weight.clone()
    engine = hs.Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), precision="fp16")
    with engine.autocast():
        loss = mse(model, data())
    engine.backward(loss)
    with engine.gradients() as grads:
        grads["0.weight"].fill_(math.nan)
    assert engine.step().skipped
    assert torch.equal(model[0].weight, before)


def test_fused_optimizer_on_overflow_holds_the_schedule() -> None:
    def learning_rate(stock: bool) -> float:
        model = mlp()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
        schedule = StepLR(optimizer, 1, gamma=0.5)
        loss = mse(model, data()) * math.inf
        if stock:
            scaler = stock_scaler(optimizer)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
        else:
            engine = hs.Engine(model, optimizer, precision="fp16", schedule=schedule)
            engine.backward(loss)
            assert engine.step().skipped
        return float(optimizer.param_groups[0]["lr"])

    assert learning_rate(stock=True) == 0.05  # and no warning
    assert learning_rate(stock=False) == 0.1


def test_fused_momentum_after_a_skipped_first_step_starts_clean() -> None:
    def make() -> tuple[Parameter, torch.optim.SGD]:
        p = Parameter(torch.ones(1000))
        return p, torch.optim.SGD([p], lr=0.1, momentum=0.9, fused=True)

    p, optimizer = make()
    scaler = stock_scaler(optimizer)
    scaler.scale((p * math.inf).sum()).backward()
    scaler.step(optimizer)
    assert "momentum_buffer" in optimizer.state[p]  # uninitialised memory

    p, optimizer = make()
    update = one_update(optimizer, hs.StaticLossScale(1024.0))
    p.grad = torch.full((1000,), math.inf)
    assert run_update(update, one_mean_window()).skipped
    assert "momentum_buffer" not in optimizer.state[p]
    p.grad = torch.full((1000,), 1024.0)
    run_update(update, one_mean_window())
    assert torch.equal(p.detach(), torch.full((1000,), 1.0) - torch.tensor(0.1))


def test_fused_momentum_for_a_parameter_that_joins_later_works() -> None:
    def make() -> tuple[Parameter, Parameter, torch.optim.SGD]:
        a, b = Parameter(torch.ones(3)), Parameter(torch.ones(3))
        return a, b, torch.optim.SGD([a, b], lr=0.1, momentum=0.9, dampening=0.5, fused=True)

    a, b, optimizer = make()
    a.grad = torch.ones(3)
    optimizer.step()
    a.grad = b.grad = torch.ones(3)
    with pytest.raises(TypeError, match="NoneType"):
        optimizer.step()

    a, b, optimizer = make()
    update = one_update(optimizer, hs.NoLossScale())
    reference = [Parameter(torch.ones(3)) for _ in range(2)]  # oracle: torch's plain loop
    plain = torch.optim.SGD(reference, lr=0.1, momentum=0.9, dampening=0.5, foreach=False)
    for b_too in (False, True, True):
        a.grad, b.grad = torch.ones(3), torch.ones(3) if b_too else None
        reference[0].grad, reference[1].grad = a.grad.clone(), b.grad
        run_update(update, one_mean_window())
        plain.step()
    assert optimizer.param_groups[0]["fused"] is True
    for found, wanted in zip((a, b), reference, strict=True):
        assert torch.allclose(found, wanted, rtol=4 * torch.finfo(torch.float32).eps, atol=0)


@pytest.mark.parametrize("kind", ["AdamW", "SGD"])
def test_fused_cpu_kernel_with_a_transposed_gradient_hits_the_right_weights(kind: str) -> None:
    def make() -> tuple[Parameter, torch.optim.Optimizer]:
        p = Parameter(torch.zeros(3, 2))
        return p, getattr(torch.optim, kind)([p], lr=1.0, fused=True)

    grad = torch.arange(6.0).view(2, 3).t()
    wanted, optimizer = make()
    wanted.grad = grad.contiguous()
    optimizer.step()
    stock, optimizer = make()
    stock.grad = grad
    optimizer.step()
    p, optimizer = make()
    update = one_update(optimizer, hs.NoLossScale())
    p.grad = grad
    run_update(update, one_mean_window())
    assert not torch.equal(stock, wanted)
    assert torch.equal(p, wanted)


def test_overflow_on_two_devices_is_still_a_skip() -> None:
    # torch adds the flags of its devices up; the fused kernels hold on exactly 1.0
    p = Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([p], lr=1.0, fused=True)
    p.grad = torch.ones(2)
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(1.0), torch.tensor(2.0)  # type: ignore[attr-defined]
    optimizer.step()
    assert torch.equal(p, torch.zeros(2))  # applied

    a, b = Parameter(torch.ones(2)), Parameter(torch.ones(2, dtype=torch.float64))
    update = one_update(torch.optim.SGD([a, b], lr=1.0, fused=True), hs.NoLossScale())
    for q in (a, b):
        q.grad = torch.full_like(q, math.inf)
    assert run_update(update, one_mean_window()).skipped
    assert torch.equal(a, torch.ones(2))


def test_multiplication_that_overflows_is_a_skip() -> None:
    def make() -> tuple[Parameter, torch.optim.SGD]:
        p = Parameter(torch.zeros(2, dtype=torch.float16))
        p.grad = torch.tensor([60000.0, 1.0], dtype=torch.float16)
        return p, torch.optim.SGD([p], lr=1.0)

    stock, optimizer = make()
    found_inf = torch.zeros(())
    grads = [stock.grad]
    torch._amp_foreach_non_finite_check_and_unscale_(grads, found_inf, torch.tensor(4.0))
    assert found_inf.item() == 0.0  # the check comes before the multiplication
    assert stock.grad is not None
    assert stock.grad[0].isinf()

    p, optimizer = make()
    assert run_update(one_update(optimizer, hs.StaticLossScale(0.25)), one_mean_window()).skipped
    assert torch.equal(p, torch.zeros_like(p))


def test_skipped_first_step_raises_no_scheduler_warning() -> None:
    def steps(stock: bool) -> None:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = StepLR(optimizer, 1)
        scaler = stock_scaler(optimizer)
        engine = None
        if not stock:
            engine = hs.Engine(model, optimizer, precision="fp16", schedule=schedule)
        for factor in (math.inf, 1.0):
            loss = mse(model, data()) * factor
            if engine is None:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                schedule.step()
                optimizer.zero_grad()
            else:
                engine.backward(loss)
                engine.step()

    with pytest.warns(UserWarning, match=r"lr_scheduler.step\(\)` before"):
        steps(stock=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        steps(stock=False)


def test_clipping_an_infinite_norm_leaves_nothing_behind() -> None:
    p = Parameter(torch.ones(2))
    p.grad = torch.tensor([math.inf, 1.0])
    torch.nn.utils.clip_grad_norm_([p], 1.0)
    assert p.grad[0].isnan()
    assert p.grad[1] == 0.0

    update = one_update(torch.optim.SGD([p], lr=1.0), hs.NoLossScale(), max_norm=1.0)
    p.grad = torch.tensor([math.inf, 1.0])
    assert run_update(update, one_mean_window()).skipped
    assert p.grad is None


def test_gradients_cleared_before_the_step_are_an_error() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model[0].weight.clone()
    scaler = stock_scaler(optimizer)
    scaler.scale(mse(model, data())).backward()
    scaler.unscale_(optimizer)
    optimizer.zero_grad()
    scaler.step(optimizer)
    assert torch.equal(model[0].weight, before)  # silent: the weights never move

    engine = hs.Engine(model, optimizer, precision="fp16")
    engine.backward(mse(model, data()))
    optimizer.zero_grad()
    with pytest.raises(RuntimeError, match=r"received a gradient in this window \(0.weight"):
        engine.step()


@pytest.mark.parametrize("saved_fused", [None, False])
def test_fused_optimizer_that_loads_an_unfused_state_goes_on(saved_fused: bool | None) -> None:
    def old_state() -> dict[str, object]:
        model = mlp()
        old = torch.optim.AdamW(model.parameters(), lr=0.1, fused=saved_fused)
        mse(model, data()).backward()
        old.step()
        return old.state_dict()

    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    optimizer.load_state_dict(old_state())
    scaler = stock_scaler(optimizer)
    scaler.scale(mse(model, data())).backward()
    with pytest.raises(AssertionError, match="grad_scale and found_inf to be None"):
        scaler.step(optimizer)

    results = []
    for fuse in ("auto", False):
        model = mlp()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        engine = hs.Engine(model, optimizer, precision="fp32", loss_scale=1024.0, fuse=fuse)
        optimizer.load_state_dict(old_state())
        assert engine.train_step([data()], mse).updated
        assert optimizer.param_groups[0]["fused"] is (
            True if fuse == "auto" and saved_fused is None else saved_fused
        )
        results.append(model[0].weight.detach().clone())
    eps = torch.finfo(torch.float32).eps
    assert torch.allclose(results[0], results[1], rtol=16 * eps, atol=16 * eps)


def test_schedule_that_needs_a_metric_is_refused() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    assert isinstance(plateau, torch.optim.lr_scheduler.LRScheduler)
    with pytest.raises(TypeError, match="keep it in your own loop"):
        hs.Engine(model, optimizer, precision="fp32", schedule=plateau)
