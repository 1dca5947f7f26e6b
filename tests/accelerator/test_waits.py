"""How often the host waits in a step: never wherever an optimizer is fused, once elsewhere.

An event is another matter: a step that nobody has looked at is committed before the next update is
launched, when forward and backward of that are queued behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer, RMSprop

import halfstep as hs
from emulated import Counts, emulated_device

Make = Callable[[list[nn.Parameter]], Optimizer]


class OwnAdamW(AdamW):
    """A subclass, whose step may do anything."""


def hooked(params: list[nn.Parameter]) -> Optimizer:
    optimizer = AdamW(params, fused=True)
    optimizer.register_step_post_hook(lambda *_: None)
    return optimizer


FUSED: dict[str, Make] = {
    "default": lambda p: AdamW(p),
    "fused": lambda p: AdamW(p, fused=True),
    "momentum": lambda p: SGD(p, lr=0.1, momentum=0.9, fused=True),
    "capturable": lambda p: AdamW(p, fused=True, capturable=True),
    "tensor lr": lambda p: AdamW(p, lr=torch.full((), 1e-3, device="cuda"), fused=True),
    "step hook": hooked,
    "subclass": lambda p: OwnAdamW(p, fused=True),
}
UNFUSED: dict[str, Make] = {
    "foreach": lambda p: AdamW(p, foreach=True),
    "loop": lambda p: AdamW(p, foreach=False),
    "rmsprop": lambda p: RMSprop(p, lr=1e-3),
    "capturable foreach": lambda p: AdamW(p, foreach=True, capturable=True),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clipped": {"max_norm": 0.1},
    "dynamic": {"loss_scale": lambda: hs.DynamicLossScale(2.0**10, growth_interval=2)},
    "hysteresis": {"loss_scale": lambda: hs.DynamicLossScale(2.0**10, hysteresis=2)},
    "average": {"ema": 0.9},
    "rollback": {"buffers": "rollback"},
    "spike": {"veto": lambda: hs.veto.norm_spike(6)},
    "lost updates": {"lost_updates": True},
    "fp16": {"precision": "fp16", "loss_scale": lambda: hs.DynamicLossScale(2.0**8)},
    "bf16": {"precision": "bf16"},
}


def model() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 4))
    return net.to("cuda")


def engine_for(make: Make, **settings: Any) -> hs.Engine:
    made = {name: value() if callable(value) else value for name, value in settings.items()}
    net = model()
    return hs.Engine(net, make(list(net.parameters())), **{"precision": "fp32", **made})


def batches(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(5, 8, generator=generator).to("cuda") for _ in range(count)]


def mean_loss(net: nn.Module, x: Tensor) -> Tensor:
    loss: Tensor = net(x).float().square().mean()
    return loss


def sum_loss(net: nn.Module, x: Tensor) -> hs.LossSum:
    rows = torch.full((), x.shape[0], device=x.device)
    return hs.LossSum(net(x).float().square().sum(), rows, rows=rows)


def waits_of(
    counts: Counts, engine: hs.Engine, loss_fn: Any = mean_loss, looks: bool = False
) -> list[tuple[int, int]]:
    """Waits and events of each step after the first two, which make state."""
    found = []
    for x in batches(4):
        counts.clear()
        outcome = engine.train_step(hs.Window([x, x]), loss_fn)
        if looks:
            assert outcome.updated
        found.append((len(counts.waits), len(counts.events)))
    assert engine.num_updates == 4
    return found[2:]


ALL_KINDS = ("plain", "clipped", "dynamic")
FUSED_ROWS = [(kind, name) for kind in FUSED for name in ALL_KINDS]
FUSED_ROWS += [("fused", name) for name in SETTINGS if name not in ALL_KINDS]
UNFUSED_ROWS = [(kind, name) for kind in UNFUSED for name in ALL_KINDS]
UNFUSED_ROWS += [("foreach", name) for name in SETTINGS if name not in ALL_KINDS]


@pytest.mark.parametrize("looks", [False, True])
@pytest.mark.parametrize(("kind", "setting"), FUSED_ROWS)
def test_fused_optimizer_never_makes_the_host_wait(kind: str, setting: str, looks: bool) -> None:
    with emulated_device() as counts:
        engine = engine_for(FUSED[kind], **SETTINGS[setting])
        # one event per step, and one more for the shares that a look at them waits for
        events = 1 + (looks and setting == "lost updates")
        assert waits_of(counts, engine, looks=looks) == [(0, events)] * 2


@pytest.mark.parametrize("looks", [False, True])
@pytest.mark.parametrize(("kind", "setting"), UNFUSED_ROWS)
def test_unfused_optimizer_makes_the_host_wait_once(kind: str, setting: str, looks: bool) -> None:
    # events: a look waits for the next loss scale, where a window can change it, and for shares
    late = setting in ("dynamic", "hysteresis", "fp16", "lost updates")
    with emulated_device() as counts:
        engine = engine_for(UNFUSED[kind], **SETTINGS[setting])
        assert waits_of(counts, engine, looks=looks) == [(1, int(looks and late))] * 2


def test_first_step_of_a_fused_optimizer_waits_once_to_make_its_state() -> None:
    # a skipped fused first step would leave state that nobody wrote: the host decides it
    with emulated_device() as counts:
        engine = engine_for(FUSED["fused"], max_norm=0.1)
        found = []
        for x in batches(3):
            counts.clear()
            engine.train_step([x], mean_loss)
            found.append(len(counts.waits))
        assert found == [1, 0, 0]


@pytest.mark.parametrize(("kind", "waits"), [("fused", 0), ("foreach", 1)])
def test_sums_with_divisors_on_the_device_add_no_wait(kind: str, waits: int) -> None:
    with emulated_device() as counts:
        engine = engine_for({**FUSED, **UNFUSED}[kind], max_norm=0.1)
        assert [found for found, _ in waits_of(counts, engine, sum_loss)] == [waits] * 2


def test_look_at_true_gradients_adds_no_wait() -> None:
    with emulated_device() as counts:
        engine = engine_for(FUSED["fused"], loss_scale=2.0**10, max_norm=0.1)
        for step, x in enumerate(batches(4)):
            counts.clear()
            engine.backward(mean_loss(engine.model, x))
            with engine.gradients() as gradients:
                assert len(gradients) == 6
            engine.step()
            assert step < 1 or counts.waits == []


@pytest.mark.parametrize(
    ("own", "use_buffers"),  # torch's plain mean with buffers fails on BatchNorm's counter
    [(None, False), ("host", False), ("host", True), ("device", False), ("device", True)],
)
def test_average_of_the_users_own_adds_no_wait(own: str | None, use_buffers: bool) -> None:
    with emulated_device() as counts:
        net = model()
        average = torch.optim.swa_utils.AveragedModel(
            net,
            multi_avg_fn=None if own is None else torch.optim.swa_utils.get_ema_multi_avg_fn(0.9),
            use_buffers=use_buffers,
        )
        if own == "device":
            average.n_averaged = average.n_averaged.to("cuda")
        optimizer = AdamW(net.parameters(), fused=True)
        engine = hs.Engine(net, optimizer, precision="fp32", ema=average)
        assert waits_of(counts, engine) == [(0, 1)] * 2


@pytest.mark.parametrize("max_norm", [None, 0.1, hs.Joint(0.1)], ids=str)
@pytest.mark.parametrize(("kind", "waits"), [("fused", 0), ("foreach", 1)])
def test_two_optimizers_together_wait_as_one(kind: str, waits: int, max_norm: Any) -> None:
    make = {**FUSED, **UNFUSED}[kind]
    with emulated_device() as counts:
        nets = {"first": model(), "last": nn.Linear(4, 2).to("cuda")}
        optimizers = {name: make(list(net.parameters())) for name, net in nets.items()}
        scale = hs.DynamicLossScale(2.0**10)
        engine = hs.Engine(nets, optimizers, precision="fp32", max_norm=max_norm, loss_scale=scale)
        found = waits_of(
            counts, engine, lambda nets, x: nets["last"](nets["first"](x)).square().mean()
        )
        assert [each for each, _ in found] == [waits] * 2


@pytest.mark.parametrize("kind", ["own step", "own state"])
def test_subclass_that_changes_the_step_waits_once(kind: str) -> None:
    # its step may do anything, so that it must not run before the decision is known
    class OwnStep(AdamW):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    class OwnState(AdamW):
        def _init_group(self, *args: Any, **kwargs: Any) -> Any:
            return super()._init_group(*args, **kwargs)

    kinds = {"own step": OwnStep, "own state": OwnState}
    with emulated_device() as counts:
        engine = engine_for(lambda params: kinds[kind](params, fused=True), max_norm=0.1)
        assert waits_of(counts, engine) == [(1, 0)] * 2
