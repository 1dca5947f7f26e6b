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


@pytest.mark.parametrize(("args", "kwargs"), [((None,), {}), ((), {"closure": None})])
@pytest.mark.parametrize("case", [("adamw", "fused"), ("adamw", "loop")], ids="-".join)
def test_closure_that_is_none_passes(
    case: tuple[str, str], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    # oracle: the call without it; Accelerate and the Trainer always pass one
    weights = []
    for given in ((args, kwargs), ((), {})):
        model = mlp()
        optimizer = make_optimizer(case, model.parameters())
        scaler = hs.GradScaler("cpu")
        scaler.scale(loss_of(model)).backward()
        scaler.step(optimizer, *given[0], **given[1])
        scaler.update()
        assert scaler.last_outcome is not None
        assert scaler.last_outcome.updated
        weights.append(list(model.parameters()))
    assert all(map(torch.equal, *weights))


class Told(torch.optim.SGD):
    """Its step takes arguments of its own."""

    told: tuple[Any, ...] = ()

    def step(self, closure: Any, factor: float = 1.0, *, note: str = "") -> Any:  # type: ignore[override]
        self.told = closure, factor, note
        return super().step()


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ((None, 3.0), {"note": "last"}),
        ((None,), {"factor": 3.0, "note": "last"}),
    ],
)
def test_other_arguments_reach_the_optimizer_as_in_torch(
    arguments: tuple[Any, ...], options: dict[str, Any]
) -> None:
    told = []
    for kind in (torch.amp.GradScaler, hs.GradScaler):
        p = Parameter(torch.ones(2))
        optimizer = Told([p], lr=0.5)
        scaler = kind("cpu")
        scaler.scale(p.sum()).backward()
        scaler.step(optimizer, *arguments, **options)
        told.append((optimizer.told, p.tolist()))
    assert told[0] == told[1] == ((None, 3.0, "last"), [0.5, 0.5])


def test_keyword_closure_of_none_does_not_hide_another_argument() -> None:
    class Noting(torch.optim.SGD):
        note = ""

        def step(self, closure: Any = None, *, note: str = "") -> Any:  # type: ignore[override]
            self.note = note
            return super().step()

    p = Parameter(torch.ones(2))
    optimizer = Noting([p], lr=0.5)
    scaler = hs.GradScaler("cpu")
    scaler.scale(p.sum()).backward()
    scaler.step(optimizer, closure=None, note="last")
    assert (optimizer.note, p.tolist()) == ("last", [0.5, 0.5])


class TakesScaler(torch.optim.SGD):
    """The older contract: the scaler itself is passed, the optimizer unscales and checks."""

    _step_supports_amp_scaling = True

    def step(self, closure: Any = None, grad_scaler: Any = None) -> Any:  # type: ignore[override]
        grad_scaler.unscale_(self)
        found = grad_scaler._found_inf_per_device(self).values()
        return None if sum(float(flag) for flag in found) else super().step(closure)


class ReadsAttributes(torch.optim.Optimizer):
    """A third party's fused optimizer: two attributes tell it what to divide by and to skip."""

    _step_supports_amp_scaling = True

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        scale, found_inf = self.grad_scale, self.found_inf  # type: ignore[attr-defined]
        if float(found_inf):
            return
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad if scale is None else p.grad / scale, alpha=group["lr"])


@pytest.mark.parametrize("unscales", [False, True])
@pytest.mark.parametrize("factor", [1.0, math.inf])
@pytest.mark.parametrize("kind", [TakesScaler, ReadsAttributes])
@pytest.mark.filterwarnings("ignore:GradScaler is going to stop passing itself:FutureWarning")
def test_optimizer_that_scales_by_itself_steps_as_in_torch(
    kind: Any, factor: float, unscales: bool
) -> None:
    # oracle: torch.amp.GradScaler, and a step of 0.5 on a gradient of 1
    unscales = unscales and kind is not TakesScaler  # whose own step does it
    weights = []
    for scaler in (torch.amp.GradScaler("cpu"), hs.GradScaler("cpu")):
        p = Parameter(torch.ones(2))
        optimizer = kind([p], lr=0.5)
        scaler.scale((p * factor).sum()).backward()
        if unscales:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        weights.append((p.tolist(), scaler.get_scale()))
        if isinstance(scaler, hs.GradScaler):
            assert scaler.last_outcome is not None
            assert scaler.last_outcome.updated == math.isfinite(factor)
    wanted = ([0.5] * 2, 2.0**16) if factor == 1.0 else ([1.0] * 2, 2.0**15)
    assert weights == [wanted, wanted]


def test_attributes_of_an_optimizer_that_scales_by_itself_are_gone_after_the_step() -> None:
    p = Parameter(torch.ones(2))
    optimizer = ReadsAttributes([p], lr=0.5)
    scaler = hs.GradScaler("cpu")
    scaler.scale(p.sum()).backward()
    scaler.step(optimizer)
    assert not {"grad_scale", "found_inf"} & vars(optimizer).keys()


@pytest.mark.parametrize("unscales", [False, True])
def test_grad_scale_of_the_user_is_multiplied_in_as_in_torch(unscales: bool) -> None:
    # closed form: gradients of 1 over 4, rate 1
    for scaler in (torch.amp.GradScaler("cpu"), hs.GradScaler("cpu")):
        p = Parameter(torch.ones(2))
        optimizer: Any = torch.optim.SGD([p], lr=1.0, fused=True)
        scaler.scale(p.sum()).backward()
        if unscales:
            scaler.unscale_(optimizer)
        optimizer.grad_scale = torch.tensor(4.0)
        scaler.step(optimizer)
        assert p.tolist() == [0.75, 0.75]
        assert not hasattr(optimizer, "grad_scale")


@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("unscales", [False, True])
def test_complex_gradients_are_unscaled_and_clipped(unscales: bool, clips: bool) -> None:
    # oracle: the gradient of the unscaled loss, clipped by torch
    torch.manual_seed(0)
    weight = torch.randn(3, dtype=torch.complex64)
    p, q = Parameter(weight.clone()), Parameter(weight.clone())
    (q.abs().square().sum()).backward()
    if clips:
        torch.nn.utils.clip_grad_norm_([q], 0.1)
    torch.optim.SGD([q], lr=0.5).step()
    optimizer = torch.optim.SGD([p], lr=0.5)
    scaler = hs.GradScaler("cpu")
    scaler.scale(p.abs().square().sum()).backward()
    if unscales:
        scaler.unscale_(optimizer)
    if clips:
        scaler.clip_grad_norm_(optimizer, 0.1)
    scaler.step(optimizer)
    scaler.update()
    assert torch.allclose(p, q, rtol=8 * EPS, atol=8 * EPS)
    before = p.detach().clone()
    optimizer.zero_grad()
    scaler.scale((p * math.inf).abs().sum()).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    assert torch.equal(before, p)


@pytest.mark.parametrize("factor", [1.0, math.inf])
def test_gradients_of_several_dtypes_are_unscaled_as_in_torch(factor: float) -> None:
    found = []
    for scaler in (torch.amp.GradScaler("cpu"), hs.GradScaler("cpu")):
        params = [Parameter(torch.ones(2, dtype=d)) for d in (torch.float32, torch.bfloat16)]
        optimizer = torch.optim.SGD(params, lr=0.5)
        scaler.scale(params[0].sum() + (params[1] * factor).float().sum()).backward()
        scaler.unscale_(optimizer)
        found.append([p.grad.tolist() for p in params if p.grad is not None])
        scaler.step(optimizer)
        found[-1].append(params[0].tolist())
    assert found[0] == found[1]
    assert found[1][0] == [1.0, 1.0]


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


def test_outcome_without_a_gradient_is_of_this_step() -> None:
    p = Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([p], lr=0.5)
    scaler = hs.GradScaler("cpu")
    one_step(scaler, optimizer, p.sum())
    optimizer.zero_grad()
    one_step(scaler, optimizer, torch.zeros((), requires_grad=True))
    outcome = scaler.last_outcome
    assert outcome is not None
    assert (outcome.updated, outcome.reason, outcome.step) == (False, "no_gradient", 2)
    assert (outcome.lr, outcome.loss_scale, outcome.grad_norm) == (0.5, 2.0**16, 0.0)
    assert math.isnan(outcome.loss)


class RaisesOnce(torch.optim.SGD):
    """Out of memory in the second step, before anything moves."""

    calls = 0

    def step(self, closure: Any = None) -> Any:
        self.calls += 1
        if self.calls == 2:
            raise MemoryError
        return super().step(closure)


def test_step_that_raises_leaves_no_outcome_and_can_be_repeated_as_in_torch() -> None:
    # closed form: two steps of rate 0.25 on a gradient of 1
    for scaler in (torch.amp.GradScaler("cpu"), hs.GradScaler("cpu")):
        p = Parameter(torch.ones(2))
        optimizer = RaisesOnce([p], lr=0.25)
        one_step(scaler, optimizer, p.sum())
        optimizer.zero_grad()
        scaler.scale(p.sum()).backward()
        with pytest.raises(MemoryError):
            scaler.step(optimizer)
        if isinstance(scaler, hs.GradScaler):
            assert scaler.last_outcome is None
        scaler.step(optimizer)
        assert p.tolist() == [0.5, 0.5]
    assert isinstance(scaler, hs.GradScaler)
    with pytest.raises(RuntimeError, match="already been called since the last update"):
        scaler.step(optimizer)
    assert scaler.last_outcome is None


@pytest.mark.parametrize("clips", [False, True])
def test_disabled_scaler_has_an_outcome(clips: bool) -> None:
    # closed form: gradients of 3 and 4 have norm 5
    p = Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([p], lr=0.5)
    scaler = hs.GradScaler("cpu", enabled=False)
    for number in (1, 2):
        optimizer.zero_grad()
        scaler.scale((p * torch.tensor([3.0, 4.0])).sum()).backward()
        if clips:
            assert scaler.clip_grad_norm_(optimizer, 2.5) == 5.0
        scaler.step(optimizer)
        scaler.update()
        outcome = scaler.last_outcome
        assert outcome is not None
        assert (outcome.updated, outcome.reason, outcome.step) == (True, None, number)
        assert (outcome.lr, outcome.loss_scale) == (0.5, 1.0)
        if clips:
            assert (outcome.grad_norm, outcome.clip_coef) == (5.0, pytest.approx(0.5, rel=1e-6))
        else:
            assert math.isnan(outcome.grad_norm)
    moved = torch.tensor([-3.0, -4.0]) * (0.5 if clips else 1.0)
    assert torch.allclose(p, moved, rtol=1e-6)


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


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_disabled_scaler_survives_copying_and_an_open_window_does_not(copied: Any) -> None:
    assert not copied(hs.GradScaler("cpu", enabled=False)).is_enabled()
    p = Parameter(torch.ones(2))
    for scaler in (torch.amp.GradScaler("cpu"), hs.GradScaler("cpu")):
        scaler.scale(p.sum()).backward()
        scaler.step(torch.optim.SGD([p], lr=0.1))
        with pytest.raises((AssertionError, RuntimeError), match="pickled"):
            copied(scaler)


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


def test_output_that_holds_no_tensor_is_refused_as_in_torch() -> None:
    for scaler in (torch.amp.GradScaler("cpu"), hs.GradScaler("cpu")):
        with pytest.raises(ValueError, match="outputs must be a Tensor or an iterable of Tensors"):
            scaler.scale(3)


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


def test_bounds_without_a_word_are_those_of_the_documentation() -> None:
    scaler = hs.GradScaler("cpu")
    assert (scaler.min_scale, scaler.max_scale, scaler.get_scale()) == (1.0, 2.0**24, 2.0**16)


@pytest.mark.parametrize("max_norm", [0.0, -1.0, math.nan])
@pytest.mark.parametrize("enabled", [True, False])
def test_clip_at_a_limit_that_cannot_be_is_refused(max_norm: float, enabled: bool) -> None:
    p = Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([p], lr=0.5)
    scaler = hs.GradScaler("cpu", enabled=enabled)
    scaler.scale(p.sum()).backward()
    with pytest.raises(hs.BadValueError, match="max_norm must be > 0"):
        scaler.clip_grad_norm_(optimizer, max_norm)


def test_outcome_of_the_scaler_has_no_divisor() -> None:
    p = Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([p], lr=0.5)
    scaler = hs.GradScaler("cpu")
    scaler.scale(p.sum()).backward()
    scaler.step(optimizer)
    assert scaler.last_outcome is not None
    assert scaler.last_outcome.divisor is None


def test_transposed_gradient_under_a_fused_subclass_hits_the_right_weights() -> None:
    # torch's fused CPU kernels walk both tensors as flat memory; oracle: float64, one SGD step
    class Own(torch.optim.SGD):
        pass

    p = Parameter(torch.zeros(2, 3))
    optimizer = Own([p], lr=1.0, fused=True)
    scaler = hs.GradScaler("cpu", init_scale=8.0)
    wanted = torch.arange(6.0).view(2, 3)
    for _ in range(2):  # the second time the state is there
        p.data.zero_()
        scaler.scale(p.sum()).backward()
        p.grad = (wanted * 8).t().contiguous().t()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(p.detach(), -wanted)


def test_optimizer_that_takes_the_scaler_and_finds_nothing_has_updated() -> None:
    class Trusts(torch.optim.SGD):
        _step_supports_amp_scaling = True

        def step(self, closure: Any = None, grad_scaler: Any = None) -> Any:  # type: ignore[override]
            return super().step()

    p = Parameter(torch.ones(2))
    scaler = hs.GradScaler("cpu", init_scale=1.0)
    scaler.scale(p.sum()).backward()
    with pytest.warns(FutureWarning, match="stop passing itself"):
        scaler.step(Trusts([p], lr=0.5))
    assert scaler.last_outcome is not None
    assert scaler.last_outcome.updated
