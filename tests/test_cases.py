"""Failures that people reported in public, each shown in stock torch first, then with halfstep.

Setting unless said otherwise: an MLP 8-16-1, 32 samples, seed 0. C1, C6, C9 and others that a
script's text or a live guard shows are tested beside those tools; C8's gradients and C16's recipe
in `test_several_optimizers.py` and `test_examples.py`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import halfstep as hs
from snapshots import differences, snapshot

Batch = tuple[Tensor, Tensor]


def make(lr: float = 0.1, kind: Any = torch.optim.SGD, **options: Any) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    return model, kind(model.parameters(), lr=lr, **options)


def data(factor: float = 1.0) -> Batch:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(32, 8, generator=generator)
    return x, factor * torch.randn(32, 1, generator=generator)


def mse(model: nn.Module, batch: Batch) -> Tensor:
    return F.mse_loss(model(batch[0]).float(), batch[1])


def gradients64(model: nn.Module, batch: Batch) -> list[Tensor]:
    """Oracle: the gradient of the whole batch in float64."""
    wide = copy.deepcopy(model).double()
    F.mse_loss(wide(batch[0].double()), batch[1].double()).backward()
    return [p.grad for p in wide.parameters() if p.grad is not None]


def distance(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Relative distance of two lists of tensors."""
    pairs = list(zip(found, expected, strict=True))
    off = math.hypot(*(float((f.double() - e).norm()) for f, e in pairs))
    return off / math.hypot(*(float(e.norm()) for _, e in pairs))


def micro_batches(batch: Batch, size: int = 16) -> Iterator[Batch]:
    return zip(batch[0].split(size), batch[1].split(size), strict=True)


@pytest.mark.parametrize(("mistake", "off"), [("unscale", 0.4), ("update", 0.2)])
def test_c2_scale_that_moves_inside_a_window(mistake: str, off: float) -> None:
    model, optimizer = make()
    expected = gradients64(model, data())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for batch in micro_batches(data()):
        scaler.scale(mse(model, batch) / 2).backward()
        if mistake == "unscale":
            scaler.unscale_(optimizer)
            scaler.update()
        else:
            scaler.update(256.0)
    if mistake == "update":
        scaler.unscale_(optimizer)
    assert distance([p.grad for p in model.parameters()], expected) > off  # type: ignore[misc]

    model, optimizer = make()
    scale = hs.DynamicLossScale(1024.0, growth_interval=1)
    engine = hs.Engine(model, optimizer, precision="fp32", loss_scale=scale)
    scales = []
    for batch in micro_batches(data()):
        engine.backward(mse(model, batch))
        scales.append(float(scale.value))
    with engine.gradients() as found:
        assert distance(list(found.values()), expected) < 1e-6
    engine.step()
    assert scales == [1024.0, 1024.0]
    assert float(scale.value) == 2048.0


@pytest.mark.parametrize("fused", [True, False])
def test_c3_overflow_moves_nothing_that_follows_the_update(fused: bool) -> None:
    model, optimizer = make(kind=torch.optim.AdamW, fused=fused)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    engine = hs.Engine(model, optimizer, precision="fp32", schedule=schedule, ema=0.9)
    engine.train_step([data()], mse)
    owners = (model, optimizer, schedule, engine.ema)
    before = copy.deepcopy(snapshot(*owners))
    clock = engine.consumed, engine.num_updates
    outcome = engine.train_step([data()], lambda m, b: mse(m, b) * math.inf)
    assert (outcome.skipped, outcome.reason) == (True, "non_finite")
    assert differences(before, snapshot(*owners)) == []
    assert (engine.consumed, engine.num_updates) == clock

    # stock torch: the fused step is called and returns early, the rate halves
    model, optimizer = make(kind=torch.optim.AdamW, fused=True)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(mse(model, data()) * math.inf).backward()
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.05


def test_c4_endless_nan_stops_at_the_floor_and_explains_itself() -> None:
    def nan_loss(model: nn.Module, batch: Batch) -> Tensor:
        return mse(model, batch) * math.nan

    model, optimizer = make()
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(150):
        optimizer.zero_grad()
        scaler.scale(nan_loss(model, data())).backward()
        scaler.step(optimizer)
        scaler.update()
    optimizer.zero_grad()
    scaler.scale(mse(model, data())).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    assert not all(bool(torch.isfinite(p).all()) for p in model.parameters())

    model, optimizer = make()
    scale = hs.DynamicLossScale(max_consecutive_skips=1000)
    engine = hs.Engine(model, optimizer, precision="fp16", loss_scale=scale)
    for _ in range(150):
        assert engine.train_step([data()], nan_loss).skipped
    assert float(scale.value) == 1.0
    assert engine.train_step([data()], mse).updated
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())

    model, optimizer = make()
    scale = hs.DynamicLossScale(max_consecutive_skips=3)
    settings: Any = {"precision": "fp16", "loss_scale": scale, "diagnose": "on_skip"}
    engine = hs.Engine(model, optimizer, **settings)
    engine.train_step([data()], nan_loss)
    engine.train_step([data()], nan_loss)
    with pytest.raises(hs.ScaleCollapse, match=r"NaN or inf at any loss scale; first in aten\.mul"):
        engine.train_step([data()], nan_loss)


def test_c5_nan_that_appears_after_unscaling_is_a_skip() -> None:
    model, optimizer = make()
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(mse(model, data())).backward()
    scaler.unscale_(optimizer)
    next(iter(model.parameters())).grad[0, 0] = math.nan  # type: ignore[index]
    scaler.step(optimizer)
    assert bool(torch.isnan(next(iter(model.parameters()))).any())

    model, optimizer = make()
    engine = hs.Engine(model, optimizer, precision="fp16")
    before = copy.deepcopy(snapshot(model, optimizer))
    engine.backward(mse(model, data()))
    with engine.gradients() as grads:
        grads["0.weight"][0, 0] = math.nan
    assert engine.step().reason == "non_finite"
    assert differences(before, snapshot(model, optimizer)) == []


def train(engine: hs.Engine, steps: range) -> list[int]:
    """Steps that were skipped."""
    batch = data(30)
    return [step for step in steps if engine.train_step([batch], mse).skipped]


@pytest.mark.parametrize("forgets", [False, True])
def test_c7_resume_without_the_scale_is_another_run(forgets: bool) -> None:
    def build() -> hs.Engine:
        model, optimizer = make(0.01, torch.optim.AdamW)
        scale = hs.DynamicLossScale(growth_interval=4)
        return hs.Engine(model, optimizer, precision="fp16", loss_scale=scale)

    straight = build()
    train(straight, range(6))
    owners = (straight.model, straight.optimizer, straight)
    saved = [copy.deepcopy(owner.state_dict()) for owner in owners]
    resumed = build()
    fresh = resumed.state_dict()
    if forgets:
        saved[2]["loss_scales"] = fresh["loss_scales"]
    for owner, state in zip((resumed.model, resumed.optimizer, resumed), saved, strict=True):
        owner.load_state_dict(state)
    skips = train(straight, range(6, 12)), train(resumed, range(6, 12))
    equal = differences(snapshot(straight.model), snapshot(resumed.model)) == []
    assert (skips[0] == skips[1], equal) == (not forgets, not forgets)
    assert len(skips[1]) > len(skips[0]) or not forgets  # the search starts again


def test_c10_optimizer_without_any_gradient() -> None:
    model, optimizer = make()
    unused = nn.Linear(2, 2)
    idle = torch.optim.SGD(unused.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(mse(model, data())).backward()
    with pytest.raises(AssertionError):
        scaler.step(idle)
    optimizer.zero_grad()

    schedule = torch.optim.lr_scheduler.StepLR(idle, 1, gamma=0.5)
    engine = hs.Engine(
        {"used": model, "unused": unused},
        {"used": optimizer, "unused": idle},
        precision="fp16",
        loss_scale=2.0**8,
        schedule={"unused": schedule},
    )
    outcome = engine.train_step([data()], lambda models, batch: mse(models["used"], batch))
    assert outcome.per_optimizer["used"].updated
    assert outcome.per_optimizer["unused"].reason == "no_gradient"
    assert idle.param_groups[0]["lr"] == 0.1
    alone = hs.Engine(unused, idle, precision="fp16")
    text = r"no parameter of the optimizer received .*weight, bias"
    with pytest.raises(RuntimeError, match=text):
        alone.train_step([data()], lambda _, batch: mse(model, batch))


def test_c11_low_precision_weights_are_refused_or_named(caplog: pytest.LogCaptureFixture) -> None:
    model, _ = make()
    half = copy.deepcopy(model).half()
    with pytest.raises(ValueError, match=r"parameter '0\.weight' is FP16"):
        hs.Engine(half, torch.optim.SGD(half.parameters(), lr=0.1), precision="fp16")
    # BF16 has 8 bits of significand: 1.0 minus 100 times 1e-4 stays 1.0
    weight = torch.ones((), dtype=torch.bfloat16)
    for _ in range(100):
        weight -= 1e-4
    assert float(weight) == 1.0
    narrow = copy.deepcopy(model).bfloat16()
    hs.Engine(narrow, torch.optim.SGD(narrow.parameters(), lr=0.1), precision="bf16")
    assert "parameter '0.weight' is BF16" in caplog.text


def test_c11_loss_of_one_fp16_element_is_scaled_in_fp32() -> None:
    loss = torch.ones(1, dtype=torch.float16, requires_grad=True)
    assert bool(torch.isinf(torch.amp.GradScaler("cpu").scale(loss)).all())
    assert hs.GradScaler("cpu").scale(loss).tolist() == [65536.0]
    assert hs.DynamicLossScale().scale(loss).tolist() == [65536.0]


def token_loss(model: nn.Module, batch: Batch) -> hs.LossSum:
    total = F.mse_loss(model(batch[0]).float(), batch[1], reduction="sum")
    return hs.LossSum(total, len(batch[0]))


def test_c12_micro_batches_of_unequal_tokens_and_one_of_nan() -> None:
    x, y = data()
    sizes = [1, 2, 5, 24]
    window = list(zip(x.split(sizes), y.split(sizes), strict=True))
    model, optimizer = make()
    expected = gradients64(model, (x, y))
    for batch in window:
        (mse(model, batch) / len(window)).backward()
    assert distance([p.grad for p in model.parameters()], expected) > 0.3  # type: ignore[misc]
    optimizer.zero_grad()

    scale = hs.DynamicLossScale(2.0**10, growth_interval=1000)
    engine = hs.Engine(model, optimizer, precision="fp32", loss_scale=scale)
    before = copy.deepcopy(snapshot(model))
    poisoned = [*window[:2], (window[2][0] * math.nan, window[2][1]), window[3]]
    assert engine.train_step(poisoned, token_loss).skipped
    assert differences(before, snapshot(model)) == []
    for batch in window:
        engine.backward(token_loss(model, batch))
    with engine.gradients() as found:
        assert distance(list(found.values()), expected) < 1e-6
    assert engine.step().updated
    assert float(scale.value) == 2.0**9  # lowered once, by the one bad window


def test_c15_search_for_the_scale_is_told_apart_from_nan() -> None:
    model, optimizer = make(0.01, torch.optim.AdamW)
    engine = hs.Engine(model, optimizer, precision="fp16", diagnose="on_skip")
    outcomes = [engine.train_step([data(30)], mse) for _ in range(8)]
    skipped = [outcome for outcome in outcomes if outcome.skipped]
    assert 0 < len(skipped) < 8
    verdicts = {outcome.diagnosis.verdict for outcome in skipped if outcome.diagnosis}
    assert verdicts == {"scale_searching"}
    assert outcomes[-1].updated
    bad = engine.train_step([data(30)], lambda m, b: mse(m, b) * math.nan)
    assert bad.diagnosis is not None
    assert bad.diagnosis.verdict == "never_finite"
