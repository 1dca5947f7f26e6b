"""Every setting of an engine on an accelerator: the numbers of the CPU, bit for bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop
from torch.optim.lr_scheduler import ExponentialLR

import halfstep as hs
from emulated import emulated_device, inner
from halfstep.records import BadValueError

EPS = torch.finfo(torch.float32).eps
OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "adamw": lambda p: AdamW(p, lr=1e-2),
    "adam": lambda p: Adam(p, lr=1e-2, amsgrad=True, fused=True),
    "momentum": lambda p: SGD(p, lr=1e-2, momentum=0.9, fused=True),
    "adagrad": lambda p: Adagrad(p, lr=1e-2, fused=True),
    "rmsprop": lambda p: RMSprop(p, lr=1e-2, foreach=False),
    "groups": lambda p: AdamW(
        [{"params": p[:2]}, {"params": p[2:], "weight_decay": 0.0}], lr=1e-2, fused=True
    ),
}


def clip_values(params: list[Tensor]) -> None:
    for p in params:
        assert p.grad is not None
        p.grad.clamp_(-0.05, 0.05)


SETTINGS: dict[str, Callable[[Optimizer], dict[str, Any]]] = {
    "plain": lambda o: {},
    "static scale": lambda o: {"loss_scale": 2.0**10},
    "dynamic scale": lambda o: {"loss_scale": hs.DynamicLossScale(2.0**10, growth_interval=2)},
    "hysteresis": lambda o: {
        "loss_scale": hs.DynamicLossScale(2.0**10, growth_interval=2, hysteresis=2)
    },
    "clip": lambda o: {"clip": clip_values},
    "schedule": lambda o: {"schedule": ExponentialLR(o, 0.5)},
    "tokens": lambda o: {"schedule": hs.TokenSchedule(lambda consumed: 1 / (1 + consumed))},
    "average": lambda o: {"ema": 0.9},
    "rollback": lambda o: {"buffers": "rollback"},
    "spike": lambda o: {"veto": hs.veto.norm_spike(1.01, warmup=1)},
    "own veto": lambda o: {"veto": lambda facts: facts.loss > 0.5},
    "diagnose": lambda o: {"diagnose": "on_skip"},
    "lost updates": lambda o: {"lost_updates": True},
    "unfused": lambda o: {"fuse": False},
}


def loss_of(net: nn.Module, x: Tensor) -> hs.LossSum:
    y = net(x)
    return hs.LossSum(y.square().sum(), x.shape[0], absolute=y.detach().abs().sum())


def run(
    device: str, optimizer: str, setting: str, looks: bool = False
) -> tuple[list[dict[str, Any]], list[Tensor]]:
    """Records and all tensors of a run with a skip in it."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 4))
    net = net.to(device)
    made = OPTIMIZERS[optimizer](list(net.parameters()))
    engine = hs.Engine(net, made, precision="fp32", **SETTINGS[setting](made))
    generator = torch.Generator().manual_seed(1)
    outcomes = []
    for step in range(5):
        xs = [torch.randn(5 + step, 8, generator=generator) for _ in range(2)]
        if step == 3:
            xs[1][0, 0] = math.inf
        outcomes.append(engine.train_step(iter([x.to(device) for x in xs]), loss_of))
        if looks:
            outcomes[-1].settle()
    records = [asdict(outcome.record) for outcome in outcomes]
    states = [*net.state_dict().values(), *(() if engine.ema is None else engine.ema.buffers())]
    states += [v for s in made.state.values() for v in s.values() if isinstance(v, Tensor)]
    return records, [inner(state).detach().clone() for state in states]


def close(left: Any, right: Any) -> bool:
    """Records agree: numbers to the rounding of a norm, all else exactly."""
    if isinstance(left, float) and isinstance(right, float):
        return left == pytest.approx(right, rel=64 * EPS, nan_ok=True)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(close(left[k], right[k]) for k in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(close, left, right))
    return bool(left == right)


ROWS = [("adamw", name) for name in SETTINGS]
ROWS += [(name, "dynamic scale") for name in OPTIMIZERS if name != "adamw"]


@pytest.mark.parametrize("looks", [False, True])
@pytest.mark.parametrize(("optimizer", "setting"), ROWS)
def test_run_on_the_device_equals_that_on_the_cpu(
    optimizer: str, setting: str, looks: bool
) -> None:
    records, states = run("cpu", optimizer, setting)
    with emulated_device():
        found_records, found = run("cuda", optimizer, setting, looks)
    for wanted, got in zip(records, found_records, strict=True):
        wanted.pop("diagnosis"), got.pop("diagnosis")
        assert close(wanted, got)
    assert any(not record["updated"] for record in records)
    for wanted, got in zip(states, found, strict=True):
        assert torch.equal(wanted.nan_to_num(), got.nan_to_num())


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_half_precision_on_the_device_looked_at_or_not_is_the_same(precision: str) -> None:
    found = []
    for looks in (False, True):
        with emulated_device():
            torch.manual_seed(0)
            net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to("cuda")
            engine = hs.Engine(net, AdamW(net.parameters()), precision=precision, max_norm=0.5)
            outcomes = []
            for step in range(6):
                x = torch.full((3, 8), float(step), device="cuda")
                outcomes.append(engine.train_step([x], lambda net, x: net(x).float().exp().sum()))
                if looks:
                    outcomes[-1].settle()
            found.append(
                (
                    [asdict(outcome.record) for outcome in outcomes],
                    [inner(p).detach().clone() for p in net.parameters()],
                )
            )
    assert repr(found[0][0]) == repr(found[1][0])  # NaN equals no NaN
    assert all(map(torch.equal, found[0][1], found[1][1]))


def test_default_device_changes_no_step() -> None:
    # a pinned copy must ask for the CPU: the default device has no pinned memory
    found = []
    for default in (None, "cuda"):
        with emulated_device():
            torch.set_default_device(default)
            torch.manual_seed(0)
            net = nn.Linear(8, 4).to("cuda")
            with torch.no_grad():
                for p in net.parameters():
                    p.fill_(0.5)
            scale = hs.DynamicLossScale(2.0**10, growth_interval=2)
            engine = hs.Engine(
                net, AdamW(net.parameters(), fused=True), precision="fp16", loss_scale=scale,
                max_norm=0.5, ema=0.9, buffers="rollback", veto=hs.veto.norm_spike(6),
            )  # fmt: skip
            xs = [torch.full((5, 8), 0.1 * (step + 1), device="cuda") for step in range(4)]
            for x in xs:
                before = inner(net.weight).clone()
                outcome = engine.train_step([x], lambda net, x: net(x).float().square().mean())
                assert outcome.updated
                assert not torch.equal(before, inner(net.weight))
            state = engine.state_dict()
            found.append([inner(p).detach().clone() for p in net.parameters()])
            assert state["counters"]["num_updates"] == 4
    assert all(map(torch.equal, *found))


def test_engine_on_a_device_without_float64_is_refused_at_construction() -> None:
    with emulated_device(has_float64=False):
        net = nn.Linear(8, 4).to("cuda")
        with pytest.raises(BadValueError, match=r"cuda:0 computes nothing in float64 .* model\.to"):
            hs.Engine(net, AdamW(net.parameters(), fused=True), precision="fp32")


def test_drop_in_for_mps_is_refused_at_construction() -> None:
    # Apple's devices have no float64; a machine without one refuses the tensor as well
    with pytest.raises(BadValueError, match="mps computes nothing in float64"):
        hs.GradScaler("mps")
    assert not hs.GradScaler("mps", enabled=False).is_enabled()
