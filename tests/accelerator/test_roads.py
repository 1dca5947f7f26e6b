"""Roads that only an accelerator takes: late commits in files, the drop-in, moved counters."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import ExponentialLR

import halfstep as hs
from emulated import Counts, emulated_device, inner


def model(device: str = "cuda") -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to(device)


def batches(count: int, device: str = "cuda") -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(5, 8, generator=generator).to(device) for _ in range(count)]


def loss_of(net: nn.Module, x: Tensor) -> Tensor:
    loss: Tensor = net(x).float().square().mean()
    return loss


def weights(net: nn.Module) -> list[Tensor]:
    return [inner(p).detach().clone() for p in net.parameters()]


# --------------------------------------------------------------------------------- checkpoints


def scheduled() -> tuple[nn.Module, hs.Engine]:
    net = model()
    optimizer = AdamW(net.parameters(), lr=1e-2, fused=True)
    schedule = ExponentialLR(optimizer, 0.5)
    return net, hs.Engine(net, optimizer, precision="fp32", schedule=schedule, ema=0.9)


@pytest.mark.parametrize("looks", [True, False])
def test_checkpoint_right_after_a_step_holds_it_whoever_looked(looks: bool, tmp_path: Path) -> None:
    # oracle: the straight run, and the closed form of the rates
    with emulated_device():
        xs = batches(6)
        net, engine = scheduled()
        rates = [engine.train_step([x], loss_of).lr for x in xs]
        assert rates == [0.01 * 0.5**k for k in range(6)]
        _, stopped = scheduled()
        for x in xs[:3]:
            outcome = stopped.train_step([x], loss_of)
            if looks:
                outcome.settle()
        hs.save_checkpoint(tmp_path / "a.pt", stopped)
        resumed_net, resumed = scheduled()
        hs.load_checkpoint(tmp_path / "a.pt", resumed)
        assert [resumed.train_step([x], loss_of).lr for x in xs[3:]] == rates[3:]
        assert all(map(torch.equal, weights(resumed_net), weights(net)))


@pytest.mark.parametrize("looks", [True, False])
def test_checkpoint_loaded_over_an_open_step_forgets_it(looks: bool, tmp_path: Path) -> None:
    with emulated_device():
        xs = batches(6)
        net, engine = scheduled()
        for x in xs[:3]:
            engine.train_step([x], loss_of)
        hs.save_checkpoint(tmp_path / "a.pt", engine)
        expected = [engine.train_step([x], loss_of).lr for x in xs[3:]]
        wanted = weights(net)
        outcome = engine.train_step([xs[0]], loss_of)
        if looks:
            outcome.settle()
        hs.load_checkpoint(tmp_path / "a.pt", engine)
        assert engine.num_updates == 3
        assert [engine.train_step([x], loss_of).lr for x in xs[3:]] == expected
        assert all(map(torch.equal, weights(net), wanted))


def test_random_numbers_of_the_device_are_in_a_checkpoint(tmp_path: Path) -> None:
    # oracle: the straight run; dropout draws on the device
    with emulated_device():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 4)).to("cuda")
        engine = hs.Engine(net, AdamW(net.parameters()), precision="fp32")
        xs = batches(4)
        for x in xs[:2]:
            engine.train_step([x], loss_of)
        hs.save_checkpoint(tmp_path / "a.pt", engine)
        found = []
        for _ in range(2):
            hs.load_checkpoint(tmp_path / "a.pt", engine)
            found.append([engine.train_step([x], loss_of).loss for x in xs[2:]])
            torch.manual_seed(5)
        assert found[0] == found[1]
        hs.load_checkpoint(tmp_path / "a.pt", engine)
        torch.cuda.manual_seed(9)  # and without it they are others
        assert [engine.train_step([x], loss_of).loss for x in xs[2:]] != found[0]


# ------------------------------------------------------------------------------ moved counters


def test_step_counters_of_an_unfused_state_move_to_the_device() -> None:
    # oracle: the same optimizer, fused from the start; torch keeps unfused counters on the host
    with emulated_device() as counts:
        xs = batches(5)
        plain_net, fused_net = model(), model()
        plain = AdamW(plain_net.parameters(), foreach=False)
        for x in xs[:2]:
            loss_of(plain_net, x).backward()
            plain.step()
            plain.zero_grad()
        saved = copy.deepcopy(plain.state_dict())
        saved["param_groups"][0].update(foreach=None, fused=None)
        assert all(state["step"].is_cpu for state in saved["state"].values())
        fused_net.load_state_dict(plain_net.state_dict())
        optimizer = AdamW(fused_net.parameters())
        engine = hs.Engine(fused_net, optimizer, precision="fp32")
        optimizer.load_state_dict(saved)
        for x in xs[2:]:
            counts.clear()
            engine.train_step([x], loss_of)
        assert counts.waits == []
        engine.settle()
        assert all(state["step"].is_cuda for state in optimizer.state.values())
        assert [float(state["step"]) for state in optimizer.state.values()] == [5.0] * 4
        for x in xs[2:]:
            loss_of(plain_net, x).backward()
            plain.step()
            plain.zero_grad()
        eps = torch.finfo(torch.float32).eps
        for p, q in zip(weights(plain_net), weights(fused_net), strict=True):
            assert torch.allclose(p, q, rtol=64 * eps, atol=64 * eps)


# ---------------------------------------------------------------------------------- the drop-in


def drop_in_run(
    device: str, make: Any, scaler: Any, *, clips: bool = False, bad: int | None = 3
) -> tuple[list[Tensor], list[float]]:
    """Weights after seven steps, of which one overflows, and the scale after each."""
    net = model(device)
    optimizer = make(list(net.parameters()))
    scales = []
    for number, x in enumerate(batches(7, device)):
        loss = loss_of(net, x)
        if number == bad:
            loss = loss * math.inf
        scaler.scale(loss).backward()
        if clips:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        optimizer.zero_grad()
    return weights(net), scales


MAKES: dict[str, Any] = {
    "fused adamw": lambda p: AdamW(p, lr=1e-2, fused=True),
    "fused momentum": lambda p: SGD(p, lr=1e-2, momentum=0.9, fused=True),
    "foreach": lambda p: AdamW(p, lr=1e-2, foreach=True),
}


@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("name", MAKES)
def test_drop_in_on_the_device_makes_the_updates_of_torchs(name: str, clips: bool) -> None:
    # oracle: torch's own class on the same device
    options: dict[str, Any] = {"init_scale": 2.0**10, "growth_interval": 3}
    with emulated_device():
        wanted, scales = drop_in_run(
            "cuda", MAKES[name], torch.amp.GradScaler("cuda", **options), clips=clips
        )
        scaler = hs.GradScaler("cuda", **options)
        found, ours = drop_in_run("cuda", MAKES[name], scaler, clips=clips)
    eps = torch.finfo(torch.float32).eps
    assert ours == scales
    for a, b in zip(wanted, found, strict=True):
        assert torch.allclose(a, b, rtol=32 * eps, atol=32 * eps)


@pytest.mark.parametrize("bad", [0, 3])
@pytest.mark.parametrize("name", MAKES)
def test_skip_of_the_drop_in_on_the_device_moves_nothing(name: str, bad: int) -> None:
    with emulated_device():
        net = model()
        optimizer = MAKES[name](list(net.parameters()))
        scaler = hs.GradScaler("cuda", init_scale=2.0**10)
        for number, x in enumerate(batches(5)):
            before = (weights(net), copy.deepcopy(optimizer.state_dict()["state"]))
            loss = loss_of(net, x) * (math.nan if number == bad else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            outcome = scaler.last_outcome
            assert outcome is not None
            assert outcome.skipped == (number == bad)
            if number == bad:
                assert all(map(torch.equal, before[0], weights(net)))
                after = optimizer.state_dict()["state"]
                assert after.keys() == before[1].keys()
                for key, state in before[1].items():
                    for n, value in state.items():
                        assert torch.equal(inner(value), inner(after[key][n]))
            else:
                assert not all(map(torch.equal, before[0], weights(net)))


def test_several_drop_in_steps_that_nobody_looks_at_wait_for_nothing() -> None:
    with emulated_device() as counts:
        net = model()
        optimizer = AdamW(net.parameters(), fused=True)
        scaler = hs.GradScaler("cuda", init_scale=2.0**10)
        for number, x in enumerate(batches(5)):
            counts.clear()
            scaler.scale(loss_of(net, x)).backward()
            scaler.clip_grad_norm_(optimizer, 0.1)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            assert number < 1 or counts.waits == counts.events == []


# ------------------------------------------------------------------- roads that wait on purpose


@pytest.mark.parametrize(
    "settings",
    [
        {"clip": lambda params: nn.utils.clip_grad_value_(params, 0.1)},
        {"diagnose": "raise"},
    ],
    ids=["clip", "diagnose"],
)
def test_setting_that_the_host_must_decide_waits_once(settings: dict[str, Any]) -> None:
    with emulated_device() as counts:
        net = model()
        engine = hs.Engine(net, AdamW(net.parameters(), fused=True), precision="fp32", **settings)
        assert host_waits(counts, engine) == [1, 1]


def host_waits(counts: Counts, engine: hs.Engine) -> list[int]:
    found = []
    for x in batches(4):
        counts.clear()
        engine.train_step([x], loss_of)
        found.append(len(counts.waits))
    return found[2:]


def test_backward_launches_the_scaling_of_the_loss_and_nothing_else() -> None:
    # oracle: the same backward without the engine; one product forward, one in its backward
    with emulated_device() as counts:
        net = model()
        engine = hs.Engine(net, AdamW(net.parameters()), precision="fp32", loss_scale=2.0**10)
        (x,) = batches(1)
        engine.train_step([x], loss_of)  # moves the scale to the device
        loss = loss_of(net, x)
        counts.clear()
        loss.backward()
        stock = counts.ops.copy()
        net.zero_grad()
        loss = loss_of(net, x)
        counts.clear()
        engine.backward(loss)
        assert counts.ops - stock == {"mul": 2}
