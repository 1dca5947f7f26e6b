"""Any split into micro-batches, with any divisors, is the update of the whole batch."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import halfstep as hs

EPS = torch.finfo(torch.float32).eps


def model_of(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).to(dtype)


def samples(count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 8, generator=generator)
    return x, torch.randn(count, 1, generator=generator)


def sum_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> hs.LossSum:
    total = F.mse_loss(model(batch[0]), batch[1], reduction="sum")
    return hs.LossSum(total, len(batch[0]), seen=len(batch[0]))


def reference(count: int, max_norm: float | None) -> dict[str, Tensor]:
    """Oracle: one SGD step on the mean over the whole batch, in float64."""
    model = model_of(torch.float64)
    x, y = samples(count)
    F.mse_loss(model(x.double()), y.double()).backward()
    norm = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm()
    coef = 1.0 if max_norm is None else min(1.0, max_norm / (float(norm) + 1e-6))
    return {
        n: p.detach() - p.grad * coef for n, p in model.named_parameters() if p.grad is not None
    }


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any),
    exponent=st.integers(0, 16),
    max_norm=st.none() | st.floats(0.01, 2.0),
)
def test_any_split_gives_the_update_of_the_whole_batch(
    sizes: list[int], exponent: int, max_norm: float | None
) -> None:
    count = sum(sizes)
    x, y = samples(count)
    window = list(zip(x.split(sizes), y.split(sizes), strict=True))
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    engine = hs.Engine(
        model, optimizer, precision="fp32", loss_scale=2.0**exponent, max_norm=max_norm
    )
    outcome = engine.train_step(window, sum_loss)
    assert outcome.divisor == count == engine.consumed
    assert outcome.metrics == {"seen": 1.0}
    for name, p in model.named_parameters():
        wanted = reference(count, max_norm)[name]
        # weights start inside [-0.36, 0.36] and move by gradients of about 1
        assert (p.detach() - wanted).abs().max() <= 32 * EPS * wanted.abs().max().clamp(min=1.0)


def test_outcome_of_a_window_has_the_loss_of_the_whole_batch() -> None:
    x, y = samples(10)
    wanted = F.mse_loss(model_of(torch.float64)(x.double()), y.double()).item()  # float64
    model = model_of()
    engine = hs.Engine(model, torch.optim.SGD(model.parameters(), lr=1.0), precision="fp32")
    outcome = engine.train_step(list(zip(x.split([1, 9]), y.split([1, 9]), strict=True)), sum_loss)
    assert outcome.loss == pytest.approx(wanted, rel=8 * EPS)


def test_mean_losses_weigh_every_micro_batch_the_same() -> None:
    # oracle: float64 mean of the two means
    wanted = model_of(torch.float64)
    x, y = samples(10)
    parts = list(zip(x.split([2, 8]), y.split([2, 8]), strict=True))
    total = sum(F.mse_loss(wanted(a.double()), b.double()) for a, b in parts) / 2
    assert isinstance(total, Tensor)
    total.backward()
    model = model_of()
    engine = hs.Engine(model, torch.optim.SGD(model.parameters(), lr=1.0), precision="fp32")
    outcome = engine.train_step(parts, lambda m, b: F.mse_loss(m(b[0]), b[1]))
    assert outcome.loss == pytest.approx(total.item(), rel=8 * EPS)
    assert outcome.divisor is None
    for p, q in zip(model.parameters(), wanted.parameters(), strict=True):
        assert q.grad is not None
        assert torch.allclose(p.double(), q - q.grad, rtol=32 * EPS, atol=32 * EPS)


def test_large_sums_in_fp16_keep_their_range() -> None:
    # a sum over 4,096 tokens at 2^16 overflows in FP16; its mean does not
    model = nn.Linear(4, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    engine = hs.Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), precision="fp16")
    window = [(torch.ones(4096, 4), torch.full((4096, 1), 0.1))]
    outcomes = [engine.train_step(window, sum_loss) for _ in range(3)]
    assert [outcome.updated for outcome in outcomes] == [True] * 3
    assert engine.loss_scale.value.item() == 2.0**16


def test_window_without_valid_tokens_is_a_skip_of_its_own() -> None:
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scale = hs.DynamicLossScale(2.0**8)
    engine = hs.Engine(model, optimizer, precision="fp16", loss_scale=scale)
    x, y = samples(4)
    empty = (x[:0], y[:0])
    before = engine.loss_scale.state_dict()
    outcome = engine.train_step([empty, empty], sum_loss)
    assert (outcome.updated, outcome.reason, outcome.divisor) == (False, "empty_window", 0.0)
    assert engine.loss_scale.state_dict() == before
    assert engine.train_step([empty, (x, y)], sum_loss).updated


def test_bad_micro_batch_costs_its_window_only() -> None:
    x, y = samples(8)
    good = [(x[:3], y[:3]), (x[3:], y[3:])]
    bad = [good[0], (x[3:] * math.nan, y[3:])]
    results = []
    for windows in ([good], [bad, good]):
        model = model_of()
        engine = hs.Engine(model, torch.optim.SGD(model.parameters(), lr=1.0), precision="fp32")
        outcomes = [engine.train_step(window, sum_loss) for window in windows]
        assert outcomes[-1].updated
        results.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_scale_is_the_same_for_every_micro_batch_of_a_window() -> None:
    model = model_of()
    scale = hs.DynamicLossScale(2.0**8, growth_interval=1)
    engine = hs.Engine(
        model, torch.optim.SGD(model.parameters(), lr=0.1), precision="fp32", loss_scale=scale
    )
    x, y = samples(6)
    seen = []

    def loss_fn(m: nn.Module, batch: tuple[Tensor, Tensor]) -> hs.LossSum:
        seen.append(scale.value.item())
        return sum_loss(m, batch)

    for _ in range(3):
        engine.train_step([(x[:3], y[:3]), (x[3:], y[3:])], loss_fn)
    assert seen == [2.0**8, 2.0**8, 2.0**9, 2.0**9, 2.0**10, 2.0**10]


def test_true_gradients_of_an_empty_window_end_in_a_skip() -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = hs.Engine(model, optimizer, precision="fp32", loss_scale=8.0)
    engine.backward(hs.LossSum(model(torch.ones(2, 3)).sum() * 0, 0))
    with engine.gradients() as grads:
        assert all(not bool(grad.any()) for grad in grads.values())
    assert engine.step().reason == "empty_window"
