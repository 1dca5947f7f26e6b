"""An error at any operation of a step: the step has happened as a whole, or not at all."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

import halfstep as hs
from failing_operations import FailAt, out_of_memory
from optimizers import CASES, SignMomentum, make_optimizer
from snapshots import differences, snapshot


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def make(case: tuple[str, str], **settings: Any) -> tuple[nn.Sequential, Optimizer, Any, hs.Engine]:
    """Two groups, a schedule, a dynamic scale."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
    groups: Any = [
        {"params": [p for p in model.parameters() if p.ndim > 1]},
        {"params": [p for p in model.parameters() if p.ndim == 1]},
    ]
    optimizer = make_optimizer(case, groups)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
    scale = hs.DynamicLossScale(64.0, growth_interval=3)
    engine = hs.Engine(
        model, optimizer, precision="fp32", loss_scale=scale, schedule=schedule, **settings
    )
    return model, optimizer, schedule, engine


def window(number: int, engine: hs.Engine, model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(8, 6, generator=generator)
    y = torch.randint(0, 2, (8,), generator=generator)
    engine.backward(hs.LossSum(F.cross_entropy(model(x), y, reduction="sum"), 8))


def everything(model: nn.Module, optimizer: Optimizer, schedule: Any, engine: hs.Engine) -> Any:
    """All but the divisor by which every loss of the run is divided; the first backward sets it."""
    states = snapshot(model, optimizer, schedule, engine)
    del states[3]["nominal"]
    return states


def run_to(
    steps: int, case: tuple[str, str], **settings: Any
) -> tuple[nn.Sequential, Optimizer, Any, hs.Engine]:
    made = make(case, **settings)
    for number in range(steps):
        window(number, made[3], made[0])
        made[3].step()
    return made


@pytest.fixture(autouse=True)
def _one_thread_that_can_be_interrupted() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tiny tensors: waking threads would be most of the time
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it
    yield
    signal.signal(signal.SIGINT, handler)
    torch.set_num_threads(threads)


def operations_of(case: tuple[str, str], steps_before: int) -> int:
    """How many operations the step after so many steps has."""
    model, _, _, engine = run_to(steps_before, case)
    window(steps_before, engine, model)
    mode = FailAt(-1, out_of_memory)
    with mode:
        engine.step()
    return -1 - mode.left


def check_all_or_nothing(
    case: tuple[str, str], steps_before: int, fail: Callable[[], object], numbers: Iterable[int]
) -> None:
    """Oracle: the same run without an error, one step shorter or as long, and later on."""
    before, after = (everything(*run_to(steps_before + n, case)) for n in (0, 1))
    later = everything(*run_to(steps_before + 2, case))
    for number in numbers:
        made = run_to(steps_before, case)
        model, _, _, engine = made
        window(steps_before, engine, model)
        with FailAt(number, fail), pytest.raises((torch.OutOfMemoryError, KeyboardInterrupt)):
            engine.step()
        happened = engine.num_updates > steps_before
        assert differences(everything(*made), after if happened else before) == []
        assert all(p.grad is None for p in model.parameters())
        for again in range(steps_before + happened, steps_before + 2):
            window(again, engine, model)
            engine.step()
        assert differences(everything(*made), later) == []


@pytest.mark.parametrize("steps_before", [0, 2])
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_lack_of_memory_at_some_operations_of_a_step_is_all_or_nothing(
    case: tuple[str, str], steps_before: int
) -> None:
    count = operations_of(case, steps_before)
    numbers = random.Random(f"{case} {steps_before}").sample(range(1, count + 1), k=4)
    check_all_or_nothing(case, steps_before, out_of_memory, [*numbers, count])


@pytest.mark.slow
@pytest.mark.parametrize("fail", [out_of_memory, interrupt])
@pytest.mark.parametrize("steps_before", [0, 2])
@pytest.mark.parametrize(
    "case",
    [("adamw", "default"), ("momentum", "foreach"), ("adafactor", "loop"), ("written", "default")],
    ids="-".join,
)
def test_error_at_every_operation_of_a_step_is_all_or_nothing(
    case: tuple[str, str], steps_before: int, fail: Callable[[], object]
) -> None:
    count = operations_of(case, steps_before)
    assert count > 5
    check_all_or_nothing(case, steps_before, fail, range(1, count + 1))


def test_first_step_that_runs_out_of_memory_leaves_no_half_made_state() -> None:
    model, optimizer, _, engine = make(("adamw", "default"))
    window(0, engine, model)
    with FailAt(30, out_of_memory), pytest.raises(torch.OutOfMemoryError):
        engine.step()
    assert engine.num_updates == 0
    assert not optimizer.state


class RaisesLate(SignMomentum):
    """Moves the first group, then raises."""

    fails = False

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        groups, self.param_groups = self.param_groups, self.param_groups[:1]
        try:
            super().step()
        finally:
            self.param_groups = groups
        if self.fails:
            raise ValueError("between two groups")
        self.param_groups = groups[1:]
        try:
            super().step()
        finally:
            self.param_groups = groups


def test_optimizer_that_raises_between_two_groups_is_put_back_at_a_later_step_too() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 1))
    optimizer = RaisesLate([{"params": m.parameters()} for m in model], lr=0.1)  # type: ignore[arg-type]
    engine = hs.Engine(model, optimizer, precision="fp32")
    x = torch.randn(3, 6)
    for _ in range(3):
        engine.train_step([x], lambda m, b: m(b).square().mean())
    before = snapshot(model, optimizer, engine)
    optimizer.fails = True
    with pytest.raises(ValueError, match="between two groups"):
        engine.train_step([x], lambda m, b: m(b).square().mean())
    assert differences(before, snapshot(model, optimizer, engine)) == []
    optimizer.fails = False
    assert engine.train_step([x], lambda m, b: m(b).square().mean()).updated


def test_options_of_groups_are_put_back_too_and_stay_the_same_tensors() -> None:
    class Warms(SignMomentum):
        """Keeps its rate in a tensor, counts in a list and in an attribute, then raises."""

        count = 0

        @torch.no_grad()
        def step(self, closure: None = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                group["lr"].mul_(0.5)
                group["history"].append(1)
                group["extra"] = 1
            self.count += 1
            raise ValueError("after the options")

    p = nn.Parameter(torch.ones(2))
    rate = torch.tensor(0.25)
    optimizer = Warms([p], lr=rate)  # type: ignore[arg-type]
    optimizer.param_groups[0]["history"] = [0]
    optimizer.count = 0
    model = nn.Module()
    model.p = p
    engine = hs.Engine(model, optimizer, precision="fp32")
    engine.backward(p.sum())
    with pytest.raises(ValueError, match="after the options"):
        engine.step()
    (group,) = optimizer.param_groups
    assert group["lr"] is rate
    assert (float(rate), group["history"], optimizer.count) == (0.25, [0], 0)
    assert "extra" not in group


def test_one_of_two_optimizers_that_raises_puts_the_other_back_as_well() -> None:
    torch.manual_seed(0)
    models = {name: nn.Linear(3, 1) for name in ("kernel", "python")}
    optimizers: dict[str, Optimizer] = {
        "kernel": torch.optim.AdamW(models["kernel"].parameters(), lr=0.1, fused=True),
        "python": RaisesLate([{"params": [p]} for p in models["python"].parameters()], lr=0.1),  # type: ignore[arg-type]
    }
    engine = hs.Engine(models, optimizers, precision="fp32")

    def loss_fn(m: Any, x: Tensor) -> Tensor:
        return m["kernel"](x).square().mean() + m["python"](x).square().mean()

    for _ in range(3):
        engine.train_step([torch.ones(2, 3)], loss_fn)
    owners = (*models.values(), *optimizers.values(), engine)
    before = snapshot(*owners)
    RaisesLate.fails = True
    try:
        with pytest.raises(ValueError, match="between two groups"):
            engine.train_step([torch.ones(2, 3)], loss_fn)
    finally:
        RaisesLate.fails = False
    assert differences(before, snapshot(*owners)) == []
    assert engine.train_step([torch.ones(2, 3)], loss_fn).updated


def fail_kernel(monkeypatch: pytest.MonkeyPatch, fails: Callable[[int], bool]) -> None:
    """Let launches of AdamW's fused kernel fail by their number within the test."""
    real, count = torch._fused_adamw_, [0]

    def kernel(*arguments: Any, **options: Any) -> None:
        count[0] += 1
        if fails(count[0]):
            out_of_memory()
        real(*arguments, **options)

    monkeypatch.setattr(torch, "_fused_adamw_", kernel)


def test_kernel_that_fails_first_counts_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    made = run_to(2, ("adamw", "fused"))
    model, _, _, engine = made
    before = everything(*made)
    fail_kernel(monkeypatch, lambda number: number == 1)
    window(2, engine, model)
    with pytest.raises(torch.OutOfMemoryError):
        engine.step()
    assert differences(before, everything(*made)) == []


def test_kernel_that_fails_second_is_launched_again_and_the_step_is_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    after = everything(*run_to(3, ("adamw", "fused")))
    made = run_to(2, ("adamw", "fused"))
    model, _, _, engine = made
    fail_kernel(monkeypatch, lambda number: number == 2)
    window(2, engine, model)
    with pytest.raises(torch.OutOfMemoryError):
        engine.step()
    assert differences(after, everything(*made)) == []


def test_torn_step_is_said_and_nothing_goes_on_until_a_state_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, optimizer, _, engine = run_to(2, ("adamw", "fused"))
    saved = snapshot(model, optimizer, engine)
    with monkeypatch.context() as patched:
        fail_kernel(patched, lambda number: number > 1)
        window(2, engine, model)
        with pytest.raises(torch.OutOfMemoryError) as caught:
            engine.step()
    assert "failed halfway through a step" in caught.value.__notes__[0]
    with pytest.raises(hs.CallOrderError, match="Load a checkpoint before going on"):
        window(2, engine, model)
    with pytest.raises(hs.CallOrderError, match="failed halfway"):
        engine.state_dict()
    for owner, state in zip((model, optimizer, engine), saved, strict=True):
        owner.load_state_dict(state)
    window(2, engine, model)
    assert engine.step().updated


def broken_average(*arguments: Any) -> None:
    raise ValueError("no average today")


def test_average_that_raises_leaves_nothing_else_behind() -> None:
    # oracle: the same run without an average
    straight = everything(*run_to(2, ("adamw", "default")))
    made = make(("adamw", "default"))
    model, optimizer, schedule, _ = made
    torch.manual_seed(0)
    ema = AveragedModel(model, avg_fn=broken_average)
    engine = hs.Engine(
        model,
        optimizer,
        precision="fp32",
        loss_scale=hs.DynamicLossScale(64.0, growth_interval=3),
        schedule=schedule,
        ema=ema,
    )
    window(0, engine, model)
    assert engine.step().updated  # the first average is a copy
    window(1, engine, model)
    with pytest.raises(hs.CallOrderError, match="the average of the weights failed after update 2"):
        engine.step()
    found = everything(model, optimizer, schedule, engine)
    found[3]["emas"] = straight[3]["emas"]
    assert differences(found, straight) == []


def test_schedule_that_raises_leaves_no_average_and_no_other_schedule_behind() -> None:
    def fails(step: int) -> float:
        if step == 2:
            raise ValueError("past the end")
        return 1.0

    models = {name: nn.Linear(3, 1) for name in ("a", "b")}
    optimizers = {n: torch.optim.SGD(m.parameters(), lr=1.0) for n, m in models.items()}
    rates = {"a": fails, "b": lambda step: 0.5**step}
    schedules = {
        n: torch.optim.lr_scheduler.LambdaLR(optimizers[n], rates[n])  # type: ignore[arg-type]
        for n in models
    }
    engine = hs.Engine(models, optimizers, precision="fp32", schedule=schedules, ema=0.5)

    def loss_fn(m: Any, x: Tensor) -> Tensor:
        return m["a"](x).mean() + m["b"](x).mean()

    engine.train_step([torch.ones(1, 3)], loss_fn)
    with pytest.raises(hs.CallOrderError, match="the schedule failed after update 2 was made"):
        engine.train_step([torch.ones(1, 3)], loss_fn)
    assert optimizers["b"].param_groups[0]["lr"] == 0.25
    assert all(ema is not None and int(ema.n_averaged) == 2 for ema in engine.emas.values())
    assert (engine.num_updates, engine.counters["b"].num_updates) == (2, 2)


def test_signal_inside_the_step_is_raised_when_the_last_counter_has_moved() -> None:
    model, optimizer, schedule, engine = make(("written", "default"))
    handle = optimizer.register_step_post_hook(lambda *arguments: interrupt())
    window(0, engine, model)
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    handle.remove()
    assert (engine.num_updates, schedule.last_epoch) == (1, 1)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_outcome_whose_commit_raised_commits_once_and_raises_again() -> None:
    made: list[int] = []

    def make_record() -> Any:
        made.append(1)
        raise ValueError("in a follower")

    outcome = hs.StepOutcome(make_record)
    with pytest.raises(ValueError, match="in a follower"):
        outcome.settle()
    for _ in range(2):
        with pytest.raises(ValueError, match="in a follower"):
            outcome.updated  # noqa: B018
    assert made == [1]
