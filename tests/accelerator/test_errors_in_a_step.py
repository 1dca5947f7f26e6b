"""An error at any point of a step on an accelerator: all of the step has happened, or nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, RMSprop
from torch.optim.lr_scheduler import ExponentialLR

import halfstep as hs
from emulated import emulated_device
from failing_operations import FailAt, out_of_memory
from snapshots import differences, snapshot

MOST_OPERATIONS = 400


def hooked(params: list[nn.Parameter]) -> AdamW:
    optimizer = AdamW(params, lr=1e-2, fused=True)
    optimizer.register_step_post_hook(lambda *_: None)
    return optimizer


MAKES: dict[str, Callable[..., Any]] = {
    "fused": lambda p: AdamW(p, lr=1e-2, fused=True),
    "momentum": lambda p: SGD(p, lr=1e-2, momentum=0.9, fused=True),
    "tensor lr": lambda p: AdamW(p, lr=torch.full((), 1e-2, device="cuda"), fused=True),
    "hook": hooked,
    "unfused": lambda p: RMSprop(p, lr=1e-2, foreach=True),
}
SETTINGS: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": dict,
    "all": lambda: {
        "loss_scale": hs.DynamicLossScale(2.0**10, growth_interval=2),
        "max_norm": 0.1,
        "ema": 0.9,
        "buffers": "rollback",
        "veto": hs.veto.norm_spike(6),
    },
}


def make(kind: str, setting: str) -> hs.Engine:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).to("cuda")
    optimizer = MAKES[kind](list(model.parameters()))
    schedule = ExponentialLR(optimizer, 0.5)
    return hs.Engine(model, optimizer, precision="fp32", schedule=schedule, **SETTINGS[setting]())


def batch(number: int) -> Tensor:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(5, 4, generator=generator).to("cuda")


def window(engine: hs.Engine, number: int) -> None:
    engine.backward(engine.model(batch(number)).square().mean())


def state_of(engine: hs.Engine) -> list[Any]:
    # the model's buffers have moved with the forward, whatever becomes of the step
    weights = [p.detach().cpu() for p in engine.model.parameters()]
    found = [weights, *snapshot(engine.optimizer, engine)]
    for slot in found[-1]["optimizers"].values():
        del slot["vetoes"]  # a condition that fails to learn, as a user's may, misses that step
    return found


def expected_states(kind: str, setting: str) -> tuple[list[Any], list[Any]]:
    engine = make(kind, setting)
    for number in range(2):
        window(engine, number)
        engine.step().settle()
    before = state_of(engine)
    window(engine, 2)
    engine.step().settle()
    return before, state_of(engine)


def failing_rate(self: object) -> list[float]:
    raise RuntimeError("the rate of a user's schedule")


def check_all_or_nothing(
    engine: hs.Engine, before: list[Any], after: list[Any], but: tuple[str, ...] = ()
) -> bool:
    """Whether the step has happened."""
    found = state_of(engine)
    for state in (before, after, found):
        for name in but:
            state[2].pop(name, None)
    assert all(p.grad is None for p in engine.model.parameters())
    if engine.num_updates == 2:
        assert differences(before[:2], found[:2]) == []
        assert differences(before[2]["schedules"], found[2]["schedules"]) == []
        assert differences(before[2]["loss_scales"], found[2]["loss_scales"]) == []
        return False
    assert differences(after, found) == []
    return True


def raised_by(engine: hs.Engine, failing: FailAt) -> Exception | None:
    try:
        with failing:
            engine.step()
    except (torch.OutOfMemoryError, hs.CallOrderError) as error:
        return error
    return None


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("kind", MAKES)
def test_error_in_any_operation_of_a_step_leaves_all_or_nothing(kind: str, setting: str) -> None:
    # oracle: the same step without an error
    with emulated_device():
        before, after = expected_states(kind, setting)
        number, outcomes = 0, set()
        while number < MOST_OPERATIONS:
            number += 1
            engine = make(kind, setting)
            for earlier in range(2):
                window(engine, earlier)
                engine.step().settle()
            window(engine, 2)
            failing = FailAt(number, out_of_memory)
            error = raised_by(engine, failing)
            if isinstance(error, hs.CallOrderError):  # it says that the average alone is missing
                assert "the average of the weights failed after update 3" in str(error)
                without = copy.deepcopy((before, after))
                assert check_all_or_nothing(engine, *without, ("emas",))
                continue
            if getattr(error, "__notes__", None):  # optimizer.step() has no way back
                assert kind in ("hook", "unfused")
                with pytest.raises(hs.CallOrderError, match="failed halfway through a step"):
                    engine.state_dict()
                continue
            if error is not None:
                outcomes.add(check_all_or_nothing(engine, before, after))
                continue
            assert failing.left > 0
            assert check_all_or_nothing(engine, before, after)
            break
        assert number > 5
        assert False in outcomes


def failing_events(patch: pytest.MonkeyPatch, at: str, error: BaseException) -> None:
    class Failing(torch.Event):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            if at == "made":
                raise error
            super().__init__(*args, **kwargs)

        def record(self, stream: Any = None) -> None:
            if at == "recorded":
                raise error
            super().record(stream)

    patch.setattr(torch, "Event", Failing)


@pytest.mark.parametrize("at", ["made", "recorded"])
@pytest.mark.parametrize("error", [torch.OutOfMemoryError("full"), KeyboardInterrupt()], ids=repr)
def test_error_while_the_numbers_are_sent_moves_nothing(
    at: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    with emulated_device():
        before, after = expected_states("fused", "all")
        engine = make("fused", "all")
        for number in range(2):
            window(engine, number)
            engine.step().settle()
        window(engine, 2)
        with pytest.MonkeyPatch.context() as patch:
            failing_events(patch, at, error)
            with pytest.raises(type(error)):
                engine.step()
        assert not check_all_or_nothing(engine, before, after)
        window(engine, 2)  # and the engine goes on
        assert engine.step().updated
        assert differences(after[0], state_of(engine)[0]) == []


@pytest.mark.parametrize("looks", [True, False])
def test_error_of_the_schedule_at_a_late_commit_leaves_all_of_the_step(looks: bool) -> None:
    with emulated_device():
        before, _ = expected_states("fused", "plain")
        engine = make("fused", "plain")
        for number in range(2):
            window(engine, number)
            engine.step().settle()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ExponentialLR, "get_lr", failing_rate)
            window(engine, 2)
            outcome = engine.step()
            with pytest.raises(hs.CallOrderError, match="schedule failed after update 3 was made"):
                outcome.settle() if looks else engine.settle()
        assert (engine.num_updates, engine.num_skipped) == (3, 0)
        assert all(differences(before[0], state_of(engine)[0]))
        window(engine, 3)  # and the engine goes on
        assert engine.step().updated


def test_error_of_a_wait_leaves_the_step_committed_by_the_next_look() -> None:
    # Ctrl-C while the host waits for a step: the step has been launched
    with emulated_device():
        before, after = expected_states("fused", "all")
        engine = make("fused", "all")
        for number in range(2):
            window(engine, number)
            engine.step().settle()
        window(engine, 2)
        outcome = engine.step()
        with pytest.MonkeyPatch.context() as patch:

            def interrupted(self: object) -> None:
                raise KeyboardInterrupt

            patch.setattr(torch.Event, "synchronize", interrupted)
            with pytest.raises(KeyboardInterrupt):
                outcome.settle()
        assert check_all_or_nothing(engine, before, after)
        assert outcome.updated
