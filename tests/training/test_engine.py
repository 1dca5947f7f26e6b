"""The engine in use: by hand, clipping, true gradients, schedules, state."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import halfstep as hs
from optimizers import CASES, make_optimizer
from snapshots import differences, snapshot

EPS = torch.finfo(torch.float32).eps


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def batch(factor: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(32, 8, generator=generator), factor * torch.ones(32, 1)


def mse(model: nn.Module, data: tuple[Tensor, Tensor]) -> Tensor:
    return F.mse_loss(model(data[0]), data[1])


def sum_loss(model: nn.Module, data: tuple[Tensor, Tensor]) -> hs.LossSum:
    return hs.LossSum(F.mse_loss(model(data[0]), data[1], reduction="sum"), len(data[0]))


def sgd_engine(model: nn.Module, **settings: object) -> hs.Engine:
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return hs.Engine(model, optimizer, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(("precision", "factor"), [("fp32", 100), ("bf16", 100), ("fp16", 10)])
def test_clip_of_scaled_gradients_means_what_it_means_in_fp32(
    precision: str, factor: float
) -> None:
    # clipped while scaled, the update would be max_norm / S = 0.000977 long
    model = mlp()
    before = [p.detach().clone() for p in model.parameters()]
    engine = sgd_engine(model, precision=precision, loss_scale=2.0**10, max_norm=1.0)
    outcome = engine.train_step([batch()], lambda m, b: mse(m, b) * factor)
    moved = torch.cat([(a - b).flatten() for a, b in zip(model.parameters(), before, strict=True)])
    assert outcome.grad_norm > 10
    assert moved.norm().item() == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_scale_of_a_power_of_two_changes_no_bit_of_fp32_training(case: tuple[str, str]) -> None:
    # oracle: the run without a scale; multiplication by a power of two is exact
    results = []
    for scale in (1.0, 2.0**-5, 2.0**10, 2.0**20):
        model = mlp()
        engine = hs.Engine(
            model,
            make_optimizer(case, model.parameters()),
            precision="fp32",
            loss_scale=scale,
            max_norm=0.5,
        )
        outcomes = [engine.train_step([batch(), batch(2.0)], sum_loss) for _ in range(3)]
        results.append((snapshot(model), [(o.grad_norm, o.clip_coef) for o in outcomes]))
    for weights, numbers in results[1:]:
        assert differences(results[0][0], weights) == []
        assert numbers == results[0][1]


def test_steps_by_hand_equal_train_step() -> None:
    results = []
    for by_hand in (False, True):
        model = mlp()
        engine = sgd_engine(model, precision="fp16", max_norm=0.5)
        for _ in range(3):
            if by_hand:
                for _ in range(2):
                    with engine.autocast():
                        loss = sum_loss(model, batch())
                    engine.backward(loss)
                engine.step()
            else:
                engine.train_step([batch(), batch()], sum_loss)
        results.append(snapshot(model, engine))
    assert differences(results[0], results[1]) == []


def test_backward_called_inside_autocast_gives_the_same_gradients() -> None:
    results = []
    for inside in (False, True):
        model = mlp()
        engine = sgd_engine(model, precision="bf16")
        with engine.autocast():
            loss = mse(model, batch())
            if inside:
                engine.backward(loss)
                assert torch.is_autocast_enabled("cpu")
        if not inside:
            engine.backward(loss)
        engine.step()
        results.append(snapshot(model))
    assert differences(results[0], results[1]) == []


def test_true_gradients_are_those_of_fp32_training() -> None:
    # oracle: plain backward in FP32
    plain = mlp()
    mse(plain, batch()).backward()
    model = mlp()
    engine = sgd_engine(model, precision="fp32", loss_scale=2.0**12)
    engine.backward(sum_loss(model, batch()))
    with engine.gradients() as grads:
        assert set(grads) == {name for name, _ in model.named_parameters()}
        for name, p in plain.named_parameters():
            assert p.grad is not None
            assert torch.allclose(grads[name], p.grad, rtol=16 * EPS, atol=16 * EPS)
        for grad in grads.values():
            grad.zero_()
    before = snapshot(model)
    outcome = engine.step()
    assert (outcome.updated, outcome.grad_norm) == (True, 0.0)
    assert differences(before, snapshot(model)) == []


def test_clip_callable_gets_true_gradients_and_its_result_is_used() -> None:
    # oracle: torch's own clip_grad_value_ on plain FP32 gradients
    plain = mlp()
    mse(plain, batch()).backward()
    norm = torch.cat([p.grad.flatten() for p in plain.parameters() if p.grad is not None]).norm()
    torch.nn.utils.clip_grad_value_(plain.parameters(), 0.01)
    with torch.no_grad():
        for p in plain.parameters():
            assert p.grad is not None
            p.sub_(p.grad)
    model = mlp()
    engine = sgd_engine(
        model,
        precision="fp32",
        loss_scale=2.0**12,
        clip=lambda params: torch.nn.utils.clip_grad_value_(params, 0.01),
    )
    outcome = engine.train_step([batch()], mse)
    assert outcome.grad_norm == pytest.approx(norm.item(), rel=8 * EPS)
    assert 0 < outcome.clip_coef < 1
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(p, q, rtol=8 * EPS, atol=8 * EPS)


def test_clip_callable_that_makes_nan_is_a_skip() -> None:
    def broken(params: list[Tensor]) -> None:
        for p in params:
            p.grad = torch.full_like(p, math.nan)

    model = mlp()
    before = snapshot(model)
    assert sgd_engine(model, precision="fp32", clip=broken).train_step([batch()], mse).skipped
    assert differences(before, snapshot(model)) == []


def test_clip_callable_does_not_hide_an_overflow() -> None:
    def hide(params: list[Tensor]) -> None:
        for p in params:
            assert p.grad is not None
            p.grad.nan_to_num_(0.0, 0.0, 0.0)

    engine = sgd_engine(mlp(), precision="fp32", clip=hide)
    assert engine.train_step([batch(math.inf)], mse).skipped


@pytest.mark.parametrize(("factor", "coef"), [(0.0, 1.0), (1.0, 0.25)])
def test_clip_coef_of_a_clip_callable_is_what_it_left_of_the_norm(
    factor: float, coef: float
) -> None:
    # closed form; of a norm of 0 nothing was clipped
    def quarter(params: list[Tensor]) -> None:
        for p in params:
            assert p.grad is not None
            p.grad.mul_(0.25)

    engine = sgd_engine(mlp(), precision="fp32", loss_scale=2.0**4, clip=quarter)
    outcome = engine.train_step([batch()], lambda m, b: mse(m, b) * factor)
    assert outcome.updated
    assert outcome.clip_coef == pytest.approx(coef, rel=8 * EPS)
    assert (outcome.grad_norm == 0.0) is (factor == 0.0)


def test_clip_coef_of_a_clip_callable_that_lengthens_is_1() -> None:
    def double(params: list[Tensor]) -> None:
        for p in params:
            assert p.grad is not None
            p.grad.mul_(2.0)

    engine = sgd_engine(mlp(), precision="fp32", clip=double)
    assert engine.train_step([batch()], mse).clip_coef == 1.0


def test_token_schedule_moves_by_committed_tokens_only() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = hs.TokenSchedule(lambda consumed: 1 / (1 + consumed))
    engine = hs.Engine(model, optimizer, precision="fp32", schedule=schedule)
    rates = []
    for factor in (1.0, math.nan, 1.0):
        rates.append(engine.train_step([batch(factor)], sum_loss).lr)
    assert rates == [1.0, 1 / 33, 1 / 33]
    assert (engine.consumed, engine.num_updates, engine.num_skipped) == (64.0, 2, 1)


def test_outcome_has_the_rate_of_the_first_group_and_its_record_has_all() -> None:
    model = mlp()
    groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters()}]
    engine = hs.Engine(model, torch.optim.SGD(groups, lr=0.2), precision="fp32")
    outcome = engine.train_step([batch()], mse)
    assert (outcome.lr, outcome.record.lr) == (0.1, [0.1, 0.2])
    assert sgd_engine(mlp(), precision="fp32").train_step([batch()], mse).lr == 1.0


def test_outcome_prints_as_a_log_line_and_has_no_truth_value() -> None:
    model = mlp()
    outcome = sgd_engine(model, precision="fp16").train_step([batch()], mse)
    assert str(outcome).startswith("[step 1] loss=")
    assert " scale=65536 grad_norm=" in str(outcome)
    assert repr(outcome).startswith("StepOutcome(StepRecord(step=1, updated=False, ")
    with pytest.raises(TypeError, match=r"ask outcome.updated or outcome.skipped"):
        bool(outcome)


def test_debug_mode_stops_at_the_first_bad_window_and_names_the_parameter() -> None:
    model = mlp()
    engine = sgd_engine(model, precision="fp32", diagnose="raise")
    model[2].weight.register_hook(lambda grad: grad * math.inf)
    before = snapshot(model, engine)
    with pytest.raises(hs.NonFiniteGradientError, match=r"first in 2.weight \(1 of 4") as caught:
        engine.train_step([batch()], mse)
    assert caught.value.parameters == ("2.weight",)
    assert differences(before, snapshot(model, engine)) == []


def test_collapse_names_parameters_and_leaves_the_weights() -> None:
    model = mlp()
    scale = hs.DynamicLossScale(max_consecutive_skips=3)
    engine = sgd_engine(model, precision="fp16", loss_scale=scale)
    before = snapshot(model)
    for _ in range(2):
        engine.train_step([batch(math.nan)], mse)
    with pytest.raises(hs.ScaleCollapse, match=r"Non-finite gradient in 0.weight, 0.bias"):
        engine.train_step([batch(math.nan)], mse)
    assert differences(before, snapshot(model)) == []


def test_state_after_loading_goes_on_bit_for_bit() -> None:
    def build() -> tuple[nn.Module, torch.optim.Optimizer, hs.Engine]:
        model = mlp()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        scale = hs.DynamicLossScale(2.0**20, growth_interval=3)
        return (
            model,
            optimizer,
            hs.Engine(model, optimizer, precision="fp16", loss_scale=scale, schedule=schedule),
        )

    straight = build()
    for _ in range(6):
        straight[2].train_step([batch()], sum_loss)
    saved = snapshot(*straight)
    for _ in range(4):
        straight[2].train_step([batch()], sum_loss)
    resumed = build()
    for owner, state in zip(resumed, saved, strict=True):
        owner.load_state_dict(state)
    assert differences(saved, snapshot(*resumed)) == []
    for _ in range(4):
        resumed[2].train_step([batch()], sum_loss)
    assert differences(snapshot(*straight), snapshot(*resumed)) == []


def test_auto_precision_logs_its_choice(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="halfstep"):
        engine = sgd_engine(mlp())
    assert f"precision: {engine.policy.format} (" in caplog.text


def test_integer_inputs_stay_integers_under_autocast() -> None:
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10))
    engine = sgd_engine(model, precision="bf16")
    ids = torch.arange(10)
    seen = []

    def loss_fn(m: nn.Module, x: Tensor) -> Tensor:
        seen.append(x.dtype)
        logits = m(x)
        assert logits.dtype is torch.bfloat16
        return F.cross_entropy(logits, x)

    assert engine.train_step([ids], loss_fn).updated
    assert seen == [torch.int64]
    assert all(p.dtype is torch.float32 for p in model.parameters())
