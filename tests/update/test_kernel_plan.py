"""The direct call of the fused kernels is `optimizer.step()`, only shorter."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch.nn import Parameter
from torch.optim import Optimizer

import halfstep as hs
from halfstep.update import Update, Window
from halfstep.update.optimizers.kernel_plan import KernelPlan
from optimizers import FUSED_CASES, make_optimizer
from snapshots import differences, snapshot
from updates import one_update, run_update

SHAPES = [(3, 5), (7,), (64, 64), (1,)]


def make(case: tuple[str, str]) -> tuple[list[Parameter], Optimizer]:
    torch.manual_seed(0)
    params = [Parameter(torch.randn(shape)) for shape in SHAPES]
    return params, make_optimizer(case, params)


def set_gradients(params: list[Parameter], seed: int, only: slice = slice(None)) -> None:
    generator = torch.Generator().manual_seed(seed)
    for p in params:
        p.grad = None
    for p in params[only]:
        p.grad = torch.randn(p.shape, generator=generator)


def stock_step(optimizer: Optimizer, multiplier: float) -> None:
    """Oracle: torch's own fused step with its own grad_scale."""
    optimizer.grad_scale = torch.tensor(multiplier)  # type: ignore[attr-defined]
    optimizer.step()
    del optimizer.grad_scale  # type: ignore[attr-defined]


def window() -> Window:
    found = Window()
    found.add(torch.zeros(()), None, {})
    return found


def roads_used(update: Update) -> KernelPlan | None:
    return update.slots[0].adapter._plan


@pytest.mark.parametrize("case", FUSED_CASES, ids="-".join)
def test_direct_road_equals_torchs_fused_step_to_the_bit(case: tuple[str, str]) -> None:
    stock_params, stock = make(case)
    params, optimizer = make(case)
    update = one_update(optimizer, hs.StaticLossScale(3.0))
    # the second parameter leaves and comes back; the learning rate changes on the way
    for seed, only in enumerate([slice(None), slice(None), slice(1, 3), slice(None), slice(None)]):
        if case[0] in ("momentum", "nesterov") and seed == 0:
            only = slice(None)
        for group in (stock.param_groups[0], optimizer.param_groups[0]):
            group["lr"] = 0.1 / (seed + 1)
        set_gradients(stock_params, seed, only)
        stock_step(stock, 3.0)
        set_gradients(params, seed, only)
        assert run_update(update, window()).updated
        assert seed == 0 or roads_used(update) is not None
    assert differences(snapshot(stock), snapshot(optimizer)) == []
    assert all(torch.equal(a, b) for a, b in zip(stock_params, params, strict=True))


@pytest.mark.parametrize("case", FUSED_CASES, ids="-".join)
def test_state_saved_on_the_direct_road_goes_on_in_stock_torch(case: tuple[str, str]) -> None:
    params, optimizer = make(case)
    update = one_update(optimizer, hs.NoLossScale())
    for seed in range(3):
        set_gradients(params, seed)
        run_update(update, window())
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    resumed_params, resumed = make(case)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    for ours, theirs in zip(params, resumed_params, strict=True):
        theirs.data.copy_(ours.data)
    set_gradients(params, 9)
    run_update(update, window())
    set_gradients(resumed_params, 9)
    resumed.step()
    assert differences(snapshot(resumed), snapshot(optimizer)) == []
    assert all(torch.equal(a, b) for a, b in zip(params, resumed_params, strict=True))


@pytest.mark.parametrize("case", FUSED_CASES, ids="-".join)
def test_state_loaded_between_two_updates_is_used(case: tuple[str, str]) -> None:
    params, optimizer = make(case)
    update = one_update(optimizer, hs.NoLossScale())
    for seed in range(2):
        set_gradients(params, seed)
        run_update(update, window())
    saved = copy.deepcopy(optimizer.state_dict())
    weights = [p.detach().clone() for p in params]
    results = []
    for _ in range(2):
        set_gradients(params, 5)
        run_update(update, window())
        results.append(snapshot(optimizer) + [p.detach().clone() for p in params])
        optimizer.load_state_dict(copy.deepcopy(saved))
        for p, weight in zip(params, weights, strict=True):
            p.data.copy_(weight)
    assert differences(results[0], results[1]) == []


def test_state_tensor_that_was_replaced_is_used() -> None:
    params, optimizer = make(("adamw", "fused"))
    update = one_update(optimizer, hs.NoLossScale())
    for seed in range(2):
        set_gradients(params, seed)
        run_update(update, window())
    fresh = torch.zeros_like(params[0])
    optimizer.state[params[0]]["exp_avg"] = fresh
    set_gradients(params, 2)
    run_update(update, window())
    assert optimizer.state[params[0]]["exp_avg"] is fresh
    assert torch.count_nonzero(fresh) == fresh.numel()


def test_group_added_later_is_updated() -> None:
    params, optimizer = make(("adamw", "fused"))
    update = one_update(optimizer, hs.NoLossScale())
    for seed in range(2):
        set_gradients(params, seed)
        run_update(update, window())
    late = Parameter(torch.ones(3))
    optimizer.add_param_group({"params": [late], "lr": 0.5})
    for _ in range(2):
        late.grad = torch.ones(3)
        before = late.detach().clone()
        run_update(update, window())
        assert not torch.equal(before, late)


def test_step_hooks_are_called_and_close_the_direct_road() -> None:
    params, optimizer = make(("adamw", "fused"))
    update = one_update(optimizer, hs.NoLossScale())
    calls: list[int] = []
    for seed in range(2):
        set_gradients(params, seed)
        run_update(update, window())
    assert roads_used(update) is not None
    handle = optimizer.register_step_post_hook(lambda *args: calls.append(1))
    set_gradients(params, 3)
    run_update(update, window())
    assert (calls, roads_used(update)) == ([1], None)
    handle.remove()
    set_gradients(params, 4)
    run_update(update, window())
    assert (calls, roads_used(update) is not None) == ([1], True)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad])
def test_tensor_learning_rate_takes_the_direct_road_to_the_bit(kind: type[Optimizer]) -> None:
    # oracle: torch's own fused step; the rate moves on the way, as a schedule moves it
    results = []
    for is_ours in (False, True):
        torch.manual_seed(0)
        params = [Parameter(torch.randn(shape)) for shape in SHAPES]
        rate = torch.tensor(0.1)
        optimizer = kind(params, lr=rate, fused=True)  # type: ignore[call-arg]
        update = one_update(optimizer, hs.StaticLossScale(4.0))
        for seed in range(3):
            set_gradients(params, seed)
            if is_ours:
                assert run_update(update, window()).lr == pytest.approx(float(rate))
            else:
                stock_step(optimizer, 4.0)
            rate.mul_(0.5)
        assert not is_ours or roads_used(update) is not None
        results.append([p.detach() for p in params])
    for stock, ours in zip(*results, strict=True):
        assert torch.equal(stock, ours)


def test_tensor_learning_rate_of_float64_is_left_to_torch() -> None:
    # the kernels for devices read a pointer to float32
    torch.manual_seed(0)
    params = [Parameter(torch.randn(shape)) for shape in SHAPES]
    optimizer = torch.optim.AdamW(params, lr=torch.tensor(0.1, dtype=torch.float64), fused=True)
    update = one_update(optimizer, hs.StaticLossScale(4.0))
    for seed in range(2):
        set_gradients(params, seed)
        assert run_update(update, window()).updated
    assert roads_used(update) is None


def test_capturable_optimizer_takes_the_direct_road_to_the_bit() -> None:
    # oracle: torch's own fused step; capturable says no more than that a graph may capture it
    results = []
    for is_ours in (False, True):
        torch.manual_seed(0)
        params = [Parameter(torch.randn(shape)) for shape in SHAPES]
        optimizer = torch.optim.AdamW(params, lr=0.1, fused=True)
        update = one_update(optimizer, hs.StaticLossScale(4.0))
        for seed in range(3):
            set_gradients(params, seed)
            for group in optimizer.param_groups:
                group["capturable"] = seed > 0  # torch refuses it on a CPU
            if is_ours:
                assert run_update(update, window()).updated
                continue
            optimizer.param_groups[0]["capturable"] = False
            stock_step(optimizer, 4.0)
        assert not is_ours or roads_used(update) is not None
        results.append([p.detach() for p in params])
    for stock, ours in zip(*results, strict=True):
        assert torch.equal(stock, ours)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_group_of_two_dtypes_closes_the_direct_road_and_is_right(kind: type[Optimizer]) -> None:
    # oracle: torch's plain loop on gradients that were never scaled
    def run(scale: float, fused: bool) -> tuple[list[Parameter], Update]:
        dtypes = (torch.float32, torch.float64)
        params = [Parameter(torch.linspace(-1, 1, 5, dtype=dtype)) for dtype in dtypes]
        options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
        implementation = {"fused": True} if fused else {"foreach": False}
        optimizer = kind(params, lr=0.1, **options, **implementation)
        update = one_update(optimizer, hs.StaticLossScale(scale))
        for step in range(3):
            for p in params:
                p.grad = torch.linspace(0.5, 1, 5, dtype=p.dtype) * (step + 1) * scale
            run_update(update, window())
        return params, update

    (found, update), (wanted, _) = run(3.0, fused=True), run(1.0, fused=False)
    assert roads_used(update) is None
    for p, q in zip(found, wanted, strict=True):
        eps = torch.finfo(p.dtype).eps
        assert torch.allclose(p, q, rtol=16 * eps, atol=16 * eps)


def test_subclass_with_its_own_step_is_called() -> None:
    class Counting(torch.optim.AdamW):
        calls = 0

        def step(self, closure: None = None) -> None:  # type: ignore[override]
            self.calls += 1
            super().step()

    params = [Parameter(torch.ones(3))]
    optimizer = Counting(params, lr=0.1, fused=True)
    update = one_update(optimizer, hs.StaticLossScale(4.0))
    for _ in range(3):
        params[0].grad = torch.full((3,), 4.0)
        run_update(update, window())
    assert optimizer.calls == 3


def test_fuse_auto_switches_an_open_optimizer_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("INFO", logger="halfstep"):
        optimizer = torch.optim.AdamW([Parameter(torch.ones(2))])
        one_update(optimizer, hs.NoLossScale())
    assert optimizer.param_groups[0]["fused"] is True
    assert caplog.messages == ["AdamW: using the fused kernel (fuse=False leaves it alone)"]


@pytest.mark.parametrize("options", [{"fused": False}, {"foreach": True}, {"foreach": False}])
def test_fuse_auto_leaves_a_choice_of_the_user_alone(options: dict[str, bool]) -> None:
    optimizer = torch.optim.AdamW([Parameter(torch.ones(2))], **options)  # type: ignore[arg-type]
    before = copy.deepcopy(optimizer.param_groups[0])
    one_update(optimizer, hs.NoLossScale())
    assert {k: v for k, v in optimizer.param_groups[0].items() if k != "params"} == {
        k: v for k, v in before.items() if k != "params"
    }


def test_fuse_auto_leaves_an_optimizer_with_history_and_false_alone() -> None:
    p = Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([p])
    p.grad = torch.ones(2)
    optimizer.step()
    one_update(optimizer, hs.NoLossScale())
    assert optimizer.param_groups[0]["fused"] is None
    untouched = torch.optim.AdamW([p])
    one_update(untouched, hs.NoLossScale(), fuse=False)
    assert untouched.param_groups[0]["fused"] is None


def test_fuse_auto_moves_a_step_counter_to_the_device_of_its_parameter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Adagrad makes its counters on the CPU; a meta tensor stands for one on an accelerator
    supported = "halfstep.update.optimizers.fuse._get_fused_kernels_supported_devices"
    monkeypatch.setattr(supported, lambda: ["cpu", "meta"])
    here, there = Parameter(torch.ones(2)), Parameter(torch.ones(2, device="meta"))
    optimizer = torch.optim.Adagrad([here, there])
    counter = optimizer.state[here]["step"]
    assert optimizer.state[there]["step"].device.type == "cpu"
    one_update(optimizer, hs.NoLossScale())
    moved = optimizer.state[there]["step"]
    assert (moved.device.type, moved.dtype, moved.shape) == ("meta", torch.float32, ())
    assert optimizer.state[here]["step"] is counter
