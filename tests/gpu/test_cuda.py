"""What only a CUDA device can show: the host never waits, a skip moves nothing, numbers agree."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator
from dataclasses import asdict

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import halfstep as hs
from halfstep.update import LossScale
from halfstep.update.readback import Readback
from optimizers import CASES, FUSED_CASES, make_optimizer
from snapshots import differences, snapshot

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
EPS = torch.finfo(torch.float32).eps
ADAMW = ("adamw", "fused")
LONG = 2**29  # cycles, about a third of a second


def make_model(device: str = DEVICE) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to(device)


def make_batches(count: int, device: str = DEVICE) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(5 + i, 8, generator=generator).to(device) for i in range(count)]


def bad_batch(value: float = math.inf) -> Tensor:
    return torch.full((5, 8), value, device=DEVICE)


def mean_loss(model: nn.Module, x: Tensor) -> Tensor:
    loss: Tensor = model(x).square().mean()
    return loss


def sum_loss(model: nn.Module, x: Tensor) -> hs.LossSum:
    y = model(x)
    rows = torch.full((), x.shape[0], device=x.device)
    return hs.LossSum(y.square().sum(), rows, absolute=y.abs().sum())


def sum_loss_by_number(model: nn.Module, x: Tensor) -> hs.LossSum:
    y = model(x)
    return hs.LossSum(y.square().sum(), x.shape[0], absolute=y.abs().sum())


def build(
    case: tuple[str, str] = ADAMW,
    *,
    device: str = DEVICE,
    loss_scale: LossScale | float | None = 2.0**10,
    gamma: float = 0.5,
    precision: str = "fp32",
    max_norm: float | None = 0.1,
) -> tuple[nn.Module, Optimizer, hs.Engine]:
    """An engine with a schedule; `gamma` is its factor per committed update."""
    model = make_model(device)
    optimizer = make_optimizer(case, model.parameters())
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=gamma)
    engine = hs.Engine(
        model,
        optimizer,
        precision=precision,
        loss_scale=loss_scale,
        max_norm=max_norm,
        schedule=schedule,
    )
    return model, optimizer, engine


def rate(optimizer: Optimizer) -> float:
    return float(optimizer.param_groups[0]["lr"])


def set_sync_debug_mode(mode: int | str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says once that the mode is a prototype
        torch.cuda.set_sync_debug_mode(mode)


@contextlib.contextmanager
def no_host_sync() -> Iterator[None]:
    """Every operation that makes the host wait for the device raises."""
    set_sync_debug_mode("error")
    try:
        yield
    finally:
        set_sync_debug_mode("default")


@contextlib.contextmanager
def counted_host_syncs() -> Iterator[list[str]]:
    """The messages of the operations that made the host wait."""
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode("default")
    messages = [str(warning.message) for warning in caught]
    found += [message for message in messages if "called a synchronizing" in message]


def run_by_hand(engine: hs.Engine, x: Tensor, loss_fn: object = mean_loss) -> hs.StepOutcome:
    with engine.autocast():
        loss = loss_fn(engine.model, x)  # type: ignore[operator]
    with no_host_sync():
        engine.backward(loss)
        return engine.step()


# ------------------------------------------------------------------------------ nothing waits


def test_no_host_sync_around_an_item_raises() -> None:
    # the oracle of the tests below
    value = torch.zeros((), device=DEVICE)
    with pytest.raises(RuntimeError, match="called a synchronizing"), no_host_sync():
        value.item()
    with counted_host_syncs() as found:
        value.item()
    assert len(found) == 1


@pytest.mark.parametrize("case", FUSED_CASES, ids="-".join)
def test_step_of_a_fused_optimizer_causes_no_host_sync(case: tuple[str, str]) -> None:
    model, _, engine = build(case)
    first, second, *batches = make_batches(6)
    engine.train_step([first], mean_loss)  # creates the state
    engine.train_step([second], mean_loss)
    before = snapshot(model)
    outcomes = [run_by_hand(engine, x) for x in batches]
    assert [outcome.step for outcome in outcomes] == [3, 4, 5, 6]
    assert all(outcome.updated for outcome in outcomes)
    assert differences(before, snapshot(model)) != []


LOSS_SCALES = {
    "none": lambda: None,
    "static": lambda: 2.0**10,
    "dynamic": lambda: hs.DynamicLossScale(2.0**10, growth_interval=2),
    "hysteresis": lambda: hs.DynamicLossScale(2.0**10, growth_interval=2, hysteresis=2),
}


@pytest.mark.parametrize("max_norm", [None, 0.1])
@pytest.mark.parametrize("loss_fn", [mean_loss, sum_loss, sum_loss_by_number])
@pytest.mark.parametrize("loss_scale", LOSS_SCALES)
def test_step_under_any_setting_causes_no_host_sync(
    loss_scale: str, loss_fn: object, max_norm: float | None
) -> None:
    _, _, engine = build(loss_scale=LOSS_SCALES[loss_scale](), max_norm=max_norm)
    first, *batches = make_batches(4)
    engine.train_step([first], loss_fn)  # type: ignore[arg-type]
    outcomes = [run_by_hand(engine, x, loss_fn) for x in [*batches, bad_batch(), batches[0]]]
    assert [outcome.updated for outcome in outcomes] == [True, True, True, False, True]


def test_step_after_its_state_exists_is_the_first_that_does_not_wait() -> None:
    # AdamW has no state before its first step, which the host therefore decides
    _, _, engine = build()
    x = make_batches(1)[0]
    with counted_host_syncs() as found:
        engine.train_step([x], mean_loss)
    assert found != []
    run_by_hand(engine, x)


@pytest.mark.parametrize("case", [("momentum", "foreach"), ("adamw", "foreach")], ids="-".join)
def test_step_of_an_unfused_optimizer_waits_once(case: tuple[str, str]) -> None:
    _, _, engine = build(case)
    batches = make_batches(3)
    engine.train_step([batches[0]], mean_loss)
    for x in batches[1:]:
        loss = mean_loss(engine.model, x)
        with counted_host_syncs() as found:
            engine.backward(loss)
            outcome = engine.step()
        assert len(found) == 1, found
        assert outcome.updated


def test_metric_given_as_a_number_causes_no_host_sync() -> None:
    _, _, engine = build()
    batches = make_batches(4)
    for x in batches[:2]:
        engine.train_step([x], lambda model, x: hs.LossSum(mean_loss(model, x), 1, rows=len(x)))
    for x in batches[2:]:
        total = mean_loss(engine.model, x)
        with no_host_sync():
            engine.backward(hs.LossSum(total, 1, rows=len(x)))
            outcome = engine.step()
    assert outcome.metrics == {"rows": 8.0}


def test_gradients_looked_at_before_the_step_cause_no_host_sync() -> None:
    _, _, engine = build()
    batches = make_batches(4)
    engine.train_step([batches[0]], mean_loss)
    for x in batches[1:]:
        loss = mean_loss(engine.model, x)
        with no_host_sync():
            engine.backward(loss)
            with engine.gradients() as gradients:
                assert len(gradients) == 4
            outcome = engine.step()
    assert outcome.updated


def test_step_returns_while_the_device_is_still_busy() -> None:
    # sync debug mode does not see every wait (events, pinned allocations); the stream does
    _, _, engine = build()
    x = make_batches(1)[0]
    for _ in range(4):
        outcome = engine.train_step([x], mean_loss)
    torch.cuda.synchronize()
    torch.cuda._sleep(LONG)
    outcome = engine.train_step([x], mean_loss)
    assert not torch.cuda.current_stream().query()
    assert outcome.updated
    assert torch.cuda.current_stream().query()


# ------------------------------------------------------------------------ a skip moves nothing


@pytest.mark.parametrize("bad", [math.inf, math.nan], ids=str)
@pytest.mark.parametrize("steps_before", [0, 1, 3])
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_skip_on_cuda_moves_no_bit(case: tuple[str, str], steps_before: int, bad: float) -> None:
    model, optimizer, engine = build(case)
    for x in make_batches(steps_before):
        assert engine.train_step([x], sum_loss).updated
    before = [*snapshot(model, optimizer), engine.state_dict()["schedules"]]
    counters = (engine.num_updates, engine.consumed, rate(optimizer))
    outcome = engine.train_step(hs.Window([make_batches(1)[0], bad_batch(bad)]), sum_loss)
    assert (outcome.skipped, outcome.reason) == (True, "non_finite")
    after = [*snapshot(model, optimizer), engine.state_dict()["schedules"]]
    assert differences(before, after) == []
    assert (engine.num_updates, engine.consumed, rate(optimizer)) == counters
    assert (engine.num_skipped, outcome.step) == (1, steps_before + 1)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_steps_around_skips_equal_the_run_without_them(case: tuple[str, str]) -> None:
    # oracle: the same run without the bad windows; nobody looks at an outcome in between
    good = make_batches(3)
    runs = []
    for windows in (good, [bad_batch(), good[0], good[1], bad_batch(math.nan), good[2]]):
        model, optimizer, engine = build(case)
        for x in windows:
            engine.train_step([x], sum_loss)
        runs.append([*snapshot(model, optimizer), engine.num_updates, engine.consumed])
    assert differences(runs[0], runs[1]) == []


@pytest.mark.parametrize("on_device", [True, False])
@pytest.mark.parametrize("steps_before", [0, 1, 3])
@pytest.mark.parametrize("case", [ADAMW, ("momentum", "fused"), ("momentum", "foreach")])
@pytest.mark.parametrize("hysteresis", [1, 2])
def test_empty_window_is_a_skip_that_leaves_the_loss_scale(
    hysteresis: int, case: tuple[str, str], steps_before: int, on_device: bool
) -> None:
    scale = hs.DynamicLossScale(2.0**10, growth_interval=7, hysteresis=hysteresis)
    model, optimizer, engine = build(case, loss_scale=scale)
    for x in make_batches(steps_before):
        assert engine.train_step([x], sum_loss).updated
    before = [*snapshot(model, optimizer), engine.loss_scale.state_dict()]

    def empty_loss(model: nn.Module, x: Tensor) -> hs.LossSum:
        divisor = torch.zeros((), dtype=torch.int64, device=DEVICE) if on_device else 0
        return hs.LossSum(model(x).sum() * 0, divisor)

    outcome = engine.train_step(hs.Window(make_batches(2)), empty_loss)
    assert (outcome.updated, outcome.reason, outcome.divisor) == (False, "empty_window", 0.0)
    assert outcome.next_loss_scale == outcome.loss_scale == 2.0**10
    after = [*snapshot(model, optimizer), engine.loss_scale.state_dict()]
    assert differences(before, after) == []
    assert (engine.num_updates, engine.num_skipped) == (steps_before, 1)


# ------------------------------------------------------------------------- the numbers are right


@pytest.mark.parametrize("loss_fn", [mean_loss, sum_loss, sum_loss_by_number])
@pytest.mark.parametrize("case", FUSED_CASES, ids="-".join)
def test_deferred_outcomes_equal_those_on_the_cpu(case: tuple[str, str], loss_fn: object) -> None:
    # oracle: the CPU, whose host road is tested against float64; outcomes are looked at last
    records, weights = [], []
    for device in ("cpu", DEVICE):
        scale = hs.DynamicLossScale(2.0**10, growth_interval=2)
        model, _, engine = build(case, device=device, loss_scale=scale, gamma=0.1)
        batches = make_batches(8, device)
        batches[5] = torch.full((5, 8), math.inf, device=device)
        outcomes = [
            engine.train_step(hs.Window(batches[i : i + 2]), loss_fn)  # type: ignore[arg-type]
            for i in range(0, 8, 2)
        ]
        records.append([outcome.record for outcome in outcomes])
        weights.append([p.detach().cpu() for p in model.parameters()])
    for cpu, cuda in zip(*records, strict=True):
        for field in ("step", "updated", "reason", "divisor", "lr", "consumed"):
            assert getattr(cpu, field) == getattr(cuda, field), field
        assert cuda.loss_scale == cpu.loss_scale
        assert cuda.next_loss_scale == cpu.next_loss_scale
        if cpu.updated:
            assert cuda.loss == pytest.approx(cpu.loss, rel=64 * EPS)
            assert cuda.metrics == pytest.approx(cpu.metrics, rel=64 * EPS)
            assert cuda.grad_norm == pytest.approx(cpu.grad_norm, rel=64 * EPS)
            assert cuda.clip_coef == pytest.approx(cpu.clip_coef, rel=64 * EPS)
    for expected, got in zip(*weights, strict=True):
        assert torch.allclose(got, expected, rtol=0, atol=256 * EPS)


def test_loss_sum_over_unequal_micro_batches_has_the_norm_of_the_whole_batch() -> None:
    # oracle: float64 on the CPU, all rows at once
    model, _, engine = build()
    batches = make_batches(5)
    engine.train_step([batches[0]], sum_loss)
    exact = make_model("cpu").double()
    exact.load_state_dict(model.state_dict())
    rows = torch.cat(batches[1:]).cpu().double()
    loss = exact(rows).square().sum() / len(rows)
    loss.backward()
    squares = [p.grad.square().sum() for p in exact.parameters() if p.grad is not None]
    outcome = engine.train_step(hs.Window(batches[1:]), sum_loss)
    assert outcome.divisor == len(rows)
    assert outcome.loss == pytest.approx(loss.item(), rel=64 * EPS)
    assert outcome.grad_norm == pytest.approx(math.sqrt(float(sum(squares))), rel=64 * EPS)


def test_divisor_on_the_device_and_as_a_number_give_the_same_bits() -> None:
    runs = []
    for loss_fn in (sum_loss, sum_loss_by_number):
        model, optimizer, engine = build()
        outcomes = [engine.train_step([x], loss_fn) for x in make_batches(4)]
        runs.append([*snapshot(model, optimizer), [asdict(o.record) for o in outcomes]])
    assert differences(runs[0], runs[1]) == []


@pytest.mark.parametrize("bad", [math.nan, -1.0, math.inf])
def test_device_divisor_that_cannot_be_moves_nothing_and_is_an_error(bad: float) -> None:
    model, optimizer, engine = build()
    x = make_batches(1)[0]
    for _ in range(2):
        assert engine.train_step([x], sum_loss).updated
    before = snapshot(model, optimizer)
    divisor = torch.full((), bad, device=DEVICE)
    outcome = engine.train_step([x], lambda model, x: hs.LossSum(model(x).sum(), divisor))
    with pytest.raises(ValueError, match="divisors of this window add up to"):
        outcome.settle()
    assert differences(before, snapshot(model, optimizer)) == []


@pytest.mark.parametrize("fused", [True, False])
def test_fp16_search_makes_the_scales_of_a_stock_loop(fused: bool) -> None:
    # oracle: torch.amp.GradScaler over the same model and batches
    def loss_fn(model: nn.Module, x: Tensor) -> Tensor:
        return mean_loss(model, x).float() * 4

    batches = make_batches(16)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**24)
    expected = []
    for x in batches:
        expected.append(scaler.get_scale())
        with torch.autocast(DEVICE, dtype=torch.float16):
            loss = loss_fn(model, x)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    ours = make_model()
    engine = hs.Engine(
        ours,
        torch.optim.SGD(ours.parameters(), lr=1e-4, fused=fused, foreach=not fused),
        precision="fp16",
        loss_scale=hs.DynamicLossScale(2.0**24),
    )
    outcomes = [engine.train_step([x], loss_fn) for x in batches]
    assert [outcome.loss_scale for outcome in outcomes] == expected
    assert expected[-1] < 2.0**24
    assert outcomes[-1].updated
    for p, q in zip(model.parameters(), ours.parameters(), strict=True):
        assert torch.allclose(p, q, rtol=16 * EPS, atol=16 * EPS)


@pytest.mark.parametrize("case", FUSED_CASES, ids="-".join)
def test_resumed_run_on_cuda_equals_the_straight_one(case: tuple[str, str]) -> None:
    batches = make_batches(6)
    straight = build(case)
    for x in batches:
        straight[2].train_step([x], sum_loss)
    stopped = build(case)
    for x in batches[:3]:
        stopped[2].train_step([x], sum_loss)
    saved = snapshot(stopped[2], stopped[0], stopped[1])
    model, optimizer, engine = build(case)
    model.load_state_dict(saved[1])
    optimizer.load_state_dict(saved[2])
    engine.load_state_dict(saved[0])
    for x in batches[3:]:
        engine.train_step([x], sum_loss)
    expected = snapshot(straight[0], straight[1], straight[2])
    assert differences(expected, snapshot(model, optimizer, engine)) == []


# --------------------------------------------------------------------------------- late commits


def test_schedule_of_a_deferred_step_moves_before_the_next_update() -> None:
    # oracle: the same run with every outcome looked at, so that every commit is early
    windows = [*make_batches(3), bad_batch(), *make_batches(2)]
    runs, rates = [], []
    for looks in (False, True):
        model, optimizer, engine = build(("sgd", "fused"))
        outcomes = []
        for x in windows:
            outcomes.append(engine.train_step([x], mean_loss))
            if looks:
                outcomes[-1].settle()
        rates.append([outcome.lr for outcome in outcomes])
        runs.append(snapshot(model, optimizer))
    assert rates[0] == [0.1 * 0.5**k for k in (0, 1, 2, 3, 3, 4)]
    assert rates[1] == rates[0]
    assert differences(runs[0], runs[1]) == []


@pytest.mark.parametrize("look", ["updated", "loss", "record"])
def test_look_at_a_deferred_outcome_commits_at_once(look: str) -> None:
    _, optimizer, engine = build(("adamw", "fused"))
    batches = make_batches(2)
    engine.train_step([batches[0]], mean_loss)
    assert rate(optimizer) == 0.01 * 0.5
    outcome = engine.train_step([batches[1]], mean_loss)
    assert rate(optimizer) == 0.01 * 0.5  # oracle: this step is still open
    getattr(outcome, look)
    assert rate(optimizer) == 0.01 * 0.25
    assert engine.num_updates == 2


def test_counters_of_the_engine_commit_at_once() -> None:
    _, optimizer, engine = build()
    for x in make_batches(3):
        engine.train_step([x], sum_loss)
    assert (engine.num_updates, engine.consumed) == (3, 5.0 + 6.0 + 7.0)
    assert rate(optimizer) == 0.01 * 0.125


def test_state_dict_right_after_a_deferred_skip_holds_it() -> None:
    _, _, engine = build(loss_scale=hs.DynamicLossScale(2.0**10))
    engine.train_step(make_batches(1), mean_loss)
    engine.train_step([bad_batch()], mean_loss)
    state = engine.state_dict()
    assert state["counters"]["attempts"] == 2
    assert state["loss_scales"][0]["scale"] == 2.0**9
    assert state["loss_scales"][0]["num_consecutive_skips"] == 1


def test_collapse_is_raised_at_the_last_skip_and_names_the_parameters() -> None:
    scale = hs.DynamicLossScale(2.0**10, max_consecutive_skips=3)
    _, _, engine = build(loss_scale=scale)
    engine.train_step(make_batches(1), mean_loss)
    engine.train_step([bad_batch()], mean_loss)
    engine.train_step([bad_batch()], mean_loss)
    with pytest.raises(hs.ScaleCollapse, match=r"0\.weight"):
        engine.train_step([bad_batch()], mean_loss)
    assert (engine.num_updates, engine.num_skipped) == (1, 3)


# -------------------------------------------------------------------------------------- devices


def test_auto_precision_follows_the_compute_capability() -> None:
    # oracle: NVIDIA's table; FP16 matrix units since 7.0 (Volta), BF16 since 8.0 (Ampere)
    capability = torch.cuda.get_device_capability()
    expected = "bf16" if capability >= (8, 0) else "fp16" if capability >= (7, 0) else "fp32"
    model = make_model()
    engine = hs.Engine(model, torch.optim.AdamW(model.parameters()), precision="auto")
    assert engine.policy.format == expected
    assert torch.cuda.get_device_name() in engine.policy.reason
    with engine.autocast():
        dtype = model(make_batches(1)[0]).dtype
    assert dtype is {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[expected]


@pytest.mark.real_device(shows="two devices have queues of their own")
@pytest.mark.skipif(torch.cuda.device_count() == 1, reason="needs two CUDA devices")
def test_readback_from_a_device_that_is_not_current_waits_for_it() -> None:
    values = torch.zeros(3, dtype=torch.float64, device="cuda:1")
    with torch.cuda.device(1):
        torch.cuda._sleep(LONG)
    assert Readback(values.add_(7)).wait() == [7.0, 7.0, 7.0]


@pytest.mark.real_device(shows="two devices have queues of their own")
@pytest.mark.skipif(torch.cuda.device_count() == 1, reason="needs two CUDA devices")
def test_parameters_on_two_devices_are_updated_as_on_one() -> None:
    # oracle: the same parameters on the CPU
    weights = []
    for devices in (("cpu", "cpu"), ("cuda:0", "cuda:1")):
        model = make_model("cpu")
        first, last = model[0].to(devices[0]), model[2].to(devices[1])  # type: ignore[index]
        engine = hs.Engine(
            model, make_optimizer(ADAMW, model.parameters()), precision="fp32", loss_scale=4.0
        )
        for x in make_batches(4, "cpu"):
            hidden = first(x.to(devices[0])).tanh()
            engine.backward(last(hidden.to(devices[1])).square().mean())
            engine.step()
        weights.append([p.detach().cpu() for p in model.parameters()])
    for expected, got in zip(*weights, strict=True):
        assert torch.allclose(got, expected, rtol=0, atol=256 * EPS)
