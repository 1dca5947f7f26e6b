"""The drop-in scaler: torch's calls, torch's results, and its defects closed."""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import Parameter

import halfstep as hs
from optimizers import CASES, make_optimizer
from snapshots import differences, snapshot

EPS = torch.finfo(torch.float32).eps
Scaler = type[torch.amp.GradScaler]


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def loss_of(model: nn.Module, factor: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return F.mse_loss(model(torch.randn(32, 8, generator=generator)), torch.ones(32, 1)) * factor


def loop(scaler: torch.amp.GradScaler, case: tuple[str, str], factors: list[float]) -> nn.Module:
    """The documented loop, with accumulation over two micro-batches and clipping."""
    model = mlp()
    optimizer = make_optimizer(case, model.parameters())
    for factor in factors:
        for _ in range(2):
            scaler.scale(loss_of(model, factor) / 2).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return model


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_documented_loop_gives_torchs_weights_and_scale(case: tuple[str, str]) -> None:
    # oracle: torch.amp.GradScaler in the same loop
    factors = [1.0, 1.0, math.inf, 1.0, math.nan, 1.0, 1.0]
    if case in (("momentum", "fused"), ("nesterov", "fused")):
        factors = factors[:2] + factors[3:]  # torch's own first skip is fine, later state too
    settings = {"init_scale": 2.0**10, "growth_interval": 2}
    stock, ours = torch.amp.GradScaler("cpu", **settings), hs.GradScaler("cpu", **settings)
    wanted, found = loop(stock, case, factors), loop(ours, case, factors)
    assert ours.get_scale() == stock.get_scale()
    for a, b in zip(wanted.parameters(), found.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=32 * EPS, atol=32 * EPS)


def one_step(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_skipped_step_moves_no_bit_and_says_so(case: tuple[str, str]) -> None:
    model = mlp()
    optimizer = make_optimizer(case, model.parameters())
    scaler = hs.GradScaler("cpu")
    before = snapshot(model, optimizer)
    one_step(scaler, optimizer, loss_of(model, math.inf))
    assert differences(before, snapshot(model, optimizer)) == []
    assert scaler.last_outcome is not None
    assert (scaler.last_outcome.skipped, scaler.last_outcome.reason) == (True, "non_finite")
    optimizer.zero_grad()
    one_step(scaler, optimizer, loss_of(model))
    assert scaler.last_outcome.updated
    assert differences(before, snapshot(model)) != []


def test_scale_has_a_floor() -> None:
    # torch: 2^-128 after 144 bad steps, and 1/scale = inf goes into the weights
    def run(scaler: torch.amp.GradScaler) -> Parameter:
        p = Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([p], lr=0.1)
        for i in range(146):
            one_step(scaler, optimizer, (p * (math.nan if i < 144 else 1.0)).sum())
            optimizer.zero_grad()
        return p

    assert not run(torch.amp.GradScaler("cpu")).isfinite().all()
    with pytest.warns(UserWarning, match="comparing scales no longer tells a skip"):
        assert run(hs.GradScaler("cpu")).isfinite().all()


@pytest.mark.parametrize("case", [("sgd", "fused"), ("sgd", "loop")], ids="-".join)
def test_gradients_with_a_graph_of_their_own_are_applied_as_in_torch(case: tuple[str, str]) -> None:
    # as a gradient penalty leaves them: create_graph=True
    weights = []
    for kind in (torch.amp.GradScaler, hs.GradScaler):
        model = mlp()
        optimizer = make_optimizer(case, model.parameters())
        scaler = kind("cpu")
        scaled = scaler.scale(loss_of(model))
        found = torch.autograd.grad(scaled, list(model.parameters()), create_graph=True)
        for p, gradient in zip(model.parameters(), found, strict=True):
            p.grad = gradient
        scaler.step(optimizer)
        weights.append([p.detach() for p in model.parameters()])
    assert all(map(torch.equal, *weights))


def test_gradient_broken_after_unscale_is_a_skip() -> None:
    def run(scaler: torch.amp.GradScaler) -> Tensor:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler.scale(loss_of(model)).backward()
        scaler.unscale_(optimizer)
        model[0].weight.grad.fill_(math.nan)
        scaler.step(optimizer)
        return model[0].weight

    assert run(torch.amp.GradScaler("cpu")).isnan().all()
    assert run(hs.GradScaler("cpu")).isfinite().all()


def test_overflow_papered_over_after_unscale_is_still_a_skip() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = hs.GradScaler("cpu")
    before = snapshot(model)
    scaler.scale(loss_of(model, math.inf)).backward()
    scaler.unscale_(optimizer)
    for p in model.parameters():
        assert p.grad is not None
        p.grad.nan_to_num_(0.0, 0.0, 0.0)
    scaler.step(optimizer)
    assert differences(before, snapshot(model)) == []


def test_fused_optimizer_on_overflow_is_not_called() -> None:
    # a framework that counts calls of step reports "not skipped" with torch's class
    def calls(scaler: torch.amp.GradScaler) -> int:
        p = Parameter(torch.ones(2))
        optimizer = torch.optim.AdamW([p], fused=True)
        count: list[int] = []
        optimizer.register_step_post_hook(lambda *_: count.append(1))
        one_step(scaler, optimizer, (p * math.inf).sum())
        return len(count)

    assert calls(torch.amp.GradScaler("cpu")) == 1
    assert calls(hs.GradScaler("cpu")) == 0


def test_lowered_growth_interval_still_grows() -> None:
    def run(scaler: torch.amp.GradScaler) -> float:
        p = Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([p], lr=0.1)
        for i in range(8):
            if i == 5:
                scaler.set_growth_interval(3)
            one_step(scaler, optimizer, p.sum())
            optimizer.zero_grad()
        return scaler.get_scale()

    settings = {"init_scale": 4.0, "growth_interval": 100}
    assert run(torch.amp.GradScaler("cpu", **settings)) == 4.0
    assert run(hs.GradScaler("cpu", **settings)) == 8.0


def test_second_update_of_a_window_counts_growth_once() -> None:
    def run(scaler: torch.amp.GradScaler) -> float:
        a, b = Parameter(torch.ones(2)), Parameter(torch.ones(2))
        optimizers = [torch.optim.SGD([q], lr=0.1) for q in (a, b)]
        for _ in range(3):
            scaler.scale((a + b).sum()).backward()
            for optimizer in optimizers:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        return scaler.get_scale()

    settings = {"init_scale": 4.0, "growth_interval": 3}
    assert run(torch.amp.GradScaler("cpu", **settings)) == 16.0  # three windows, six updates
    assert run(hs.GradScaler("cpu", **settings)) == 8.0


@pytest.mark.parametrize("unscales", [False, True])
def test_step_after_an_update_divides_by_the_scale_its_gradients_carry(unscales: bool) -> None:
    # oracle: SGD with lr 1 and gradient 1 moves a weight by 1
    def run(scaler: torch.amp.GradScaler) -> float:
        a, b = Parameter(torch.ones(2)), Parameter(torch.ones(2))
        first, second = torch.optim.SGD([a], lr=1.0), torch.optim.SGD([b], lr=1.0)
        scaler.scale((a * math.inf).sum() + b.sum()).backward()
        scaler.step(first)
        scaler.update()  # the scale is halved here
        if unscales:
            scaler.unscale_(second)
        scaler.step(second)
        scaler.update()
        return float(b[0].detach())

    assert run(torch.amp.GradScaler("cpu", init_scale=4.0)) == -1.0
    ours = hs.GradScaler("cpu", init_scale=4.0)
    assert run(ours) == 0.0
    assert ours.get_scale() == 2.0  # one back-off for one window


@pytest.mark.parametrize(("args", "kwargs"), [((print,), {}), ((), {"closure": print})])
def test_closure_is_refused(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    p = Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([p], lr=0.1)
    scaler = hs.GradScaler("cpu")
    scaler.scale(p.sum()).backward()
    with pytest.raises(RuntimeError, match="takes no closure"):
        scaler.step(optimizer, *args, **kwargs)


def test_one_element_fp16_loss_is_scaled_in_fp32() -> None:
    loss = torch.tensor([2.0], dtype=torch.float16)
    assert torch.amp.GradScaler("cpu").scale(loss).isinf().all()
    assert hs.GradScaler("cpu").scale(loss).item() == 131072.0


def test_clip_is_a_part_of_the_step() -> None:
    # oracle: torch's unscale_, clip_grad_norm_, step
    results = []
    for ours in (False, True):
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scaler = hs.GradScaler("cpu") if ours else torch.amp.GradScaler("cpu")
        scaler.scale(loss_of(model)).backward()
        if isinstance(scaler, hs.GradScaler):
            norm = scaler.clip_grad_norm_(optimizer, 0.1)
        else:
            scaler.unscale_(optimizer)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        results.append((float(norm), [p.detach() for p in model.parameters()]))
    assert results[1][0] == pytest.approx(results[0][0], rel=8 * EPS)
    for a, b in zip(results[0][1], results[1][1], strict=True):
        assert torch.allclose(a, b, rtol=8 * EPS, atol=8 * EPS)


def test_optimizer_without_any_gradient_is_tolerated() -> None:
    p, idle = Parameter(torch.ones(2)), Parameter(torch.ones(2))
    optimizer, other = torch.optim.SGD([p], lr=1.0), torch.optim.SGD([idle], lr=1.0)
    for scaler in (torch.amp.GradScaler("cpu"), hs.GradScaler("cpu")):
        p.grad = None
        scaler.scale(p.sum()).backward()
        scaler.step(optimizer)
        if isinstance(scaler, hs.GradScaler):
            scaler.step(other)
            scaler.update()
        else:
            with pytest.raises(AssertionError, match="No inf checks"):
                scaler.step(other)
    assert torch.equal(idle, torch.ones(2))


@pytest.mark.parametrize("direction", ["to torch", "from torch", "to halfstep"])
def test_state_is_exchanged_with_torch(direction: str) -> None:
    classes: tuple[Any, Any] = {
        "to torch": (hs.GradScaler, torch.amp.GradScaler),
        "from torch": (torch.amp.GradScaler, hs.GradScaler),
        "to halfstep": (hs.GradScaler, hs.GradScaler),
    }[direction]
    first = classes[0]("cpu", init_scale=2.0**9, growth_interval=4)
    p = Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([p], lr=0.1)
    for _ in range(3):
        one_step(first, optimizer, p.sum())
        optimizer.zero_grad()
    second = classes[1]("cpu")
    second.load_state_dict(first.state_dict())
    assert second.get_scale() == 2.0**9
    one_step(second, optimizer, p.sum())
    assert second.get_scale() == 2.0**10  # the growth count came along


def test_state_with_a_scale_outside_of_the_bounds_widens_them() -> None:
    scaler = hs.GradScaler("cpu")
    scaler.load_state_dict({**torch.amp.GradScaler("cpu").state_dict(), "scale": 2.0**-4})
    assert (scaler.get_scale(), scaler.min_scale) == (2.0**-4, 2.0**-4)
    with pytest.raises(RuntimeError, match="state is empty"):
        scaler.load_state_dict({})
    assert hs.GradScaler("cpu", init_scale=2.0**30).max_scale == 2.0**30


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_scaler_survives_copying(copied: Any) -> None:
    scaler = hs.GradScaler("cpu", init_scale=2.0**7, min_scale=0.5, hysteresis=2)
    p = Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([p], lr=0.1)
    one_step(scaler, optimizer, p.sum())
    twin = copied(scaler)
    assert twin.state_dict() == scaler.state_dict()
    optimizer.zero_grad()
    one_step(twin, optimizer, p.sum())
    assert twin.last_outcome.updated


def test_skip_on_the_floor_warns_once_and_the_outcome_is_right() -> None:
    p = Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([p], lr=0.1)
    scaler = hs.GradScaler("cpu", init_scale=2.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(4):
            one_step(scaler, optimizer, (p * math.nan).sum())
            assert scaler.last_outcome is not None
            assert scaler.last_outcome.skipped
            optimizer.zero_grad()
    assert len(caught) == 1  # 2 -> 1 told itself; 1 -> 1 did not


def test_collapse_is_raised_only_where_it_was_asked_for() -> None:
    p = Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([p], lr=0.1)
    scaler = hs.GradScaler("cpu", max_consecutive_skips=3)
    for _ in range(2):
        one_step(scaler, optimizer, (p * math.nan).sum())
        optimizer.zero_grad()
    with pytest.raises(hs.ScaleCollapse, match="3 updates in a row"):
        one_step(scaler, optimizer, (p * math.nan).sum())


def test_disabled_scaler_does_nothing() -> None:
    # oracle: the same step without a scaler
    p, q = Parameter(torch.ones(2)), Parameter(torch.ones(2))
    scaler = hs.GradScaler("cpu", enabled=False)
    optimizer = torch.optim.SGD([p], lr=0.1)
    one_step(scaler, optimizer, p.square().sum())
    q.square().sum().backward()
    torch.optim.SGD([q], lr=0.1).step()
    assert torch.equal(p, q)
    assert (scaler.get_scale(), scaler.state_dict(), scaler.is_enabled()) == (1.0, {}, False)


def test_scaler_without_a_device_scales_on_a_cpu() -> None:
    # torch's default is "cuda": without one it warns once and trains FP16 unscaled
    if torch.cuda.is_available():
        pytest.skip("needs a machine without CUDA")
    with pytest.warns(UserWarning, match="CUDA is not available"):
        assert not torch.amp.GradScaler().is_enabled()
    assert hs.GradScaler().is_enabled()


@pytest.mark.parametrize(
    ("call", "args"), [("step", []), ("unscale_", []), ("clip_grad_norm_", [1.0])]
)
def test_calls_before_scale_are_errors(call: str, args: list[float]) -> None:
    scaler = hs.GradScaler("cpu")
    optimizer = torch.optim.SGD([Parameter(torch.ones(2))], lr=0.1)
    with pytest.raises(RuntimeError, match=r"before scale\(loss\)"):
        getattr(scaler, call)(optimizer, *args)
    with pytest.raises(RuntimeError, match=r"update\(\) before scale\(loss\)"):
        scaler.update()


def test_calls_out_of_order_are_errors() -> None:
    p = Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([p], lr=0.1)
    scaler = hs.GradScaler("cpu")
    scaler.scale(p.sum()).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="already been called on this optimizer"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="already been called since the last update"):
        scaler.step(optimizer)
    with pytest.raises(RuntimeError, match=r"unscale_\(\) after step"):
        scaler.unscale_(optimizer)


def test_scale_of_nested_outputs_keeps_their_form() -> None:
    scaler = hs.GradScaler("cpu", init_scale=2.0)
    one = torch.ones(())
    found = scaler.scale([one, (one, one)])
    assert isinstance(found, list)
    assert isinstance(found[1], tuple)
    assert float(found[1][0]) == 2.0
    assert [float(x) for x in scaler.scale(x for x in (one, one))] == [2.0, 2.0]


def test_new_scale_is_set_and_widens_the_bounds() -> None:
    p = Parameter(torch.ones(2))
    scaler = hs.GradScaler("cpu")
    one_step(scaler, torch.optim.SGD([p], lr=0.1), p.sum())
    scaler.update(0.25)
    assert (scaler.get_scale(), scaler.min_scale) == (0.25, 0.25)
    scaler.update(torch.tensor(8.0))
    assert scaler.get_scale() == 8.0
    with pytest.raises(ValueError, match="new_scale must be positive"):
        scaler.update(0.0)
