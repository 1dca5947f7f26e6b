"""Misuse is one sentence that says what to do, and nothing has moved."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import Parameter

import halfstep as hs
from snapshots import differences, snapshot


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def make(**settings: Any) -> tuple[nn.Sequential, hs.Engine]:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, hs.Engine(model, optimizer, **{"precision": "fp32", **settings})


def out(model: nn.Module) -> Tensor:
    result: Tensor = model(torch.ones(4, 8))
    return result


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_norm": 0.0}, "max_norm must be > 0, got 0.0"),
        ({"max_norm": -1}, "max_norm must be > 0, got -1"),
        ({"max_norm": math.nan}, "max_norm must be > 0, got nan"),
        ({"max_norm": "1"}, "max_norm must be a number, got str"),
        ({"max_norm": 1.0, "clip": print}, "give one of them"),
        ({"clip": 1.0}, "clip must be a callable"),
        ({"loss_scale": math.inf}, "positive and finite"),
        ({"loss_scale": 0}, "positive and finite"),
        ({"precision": "half"}, "precision must be 'auto', 'fp32', 'bf16' or 'fp16', got 'half'"),
        ({"precision": torch.float16}, "did you mean 'fp16'"),
        ({"precision": "BF16"}, "did you mean 'bf16'"),
        ({"precision": 16}, "precision must be .* got int"),
        ({"loss_scale": hs.DynamicLossScale}, r"pass an object: hs.DynamicLossScale\(\)"),
        ({"fuse": True}, "fuse must be 'auto' or False"),
        ({"diagnose": "always"}, "diagnose must be 'never', 'raise' or 'on_skip'"),
        ({"schedule": lambda step: 1.0}, "schedule must be a halfstep token schedule or a torch"),
    ],
)
def test_engine_refuses_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(hs.HalfstepError, match=message):
        make(**settings)


def test_engine_refuses_an_optimizer_of_another_model() -> None:
    optimizer = torch.optim.SGD(mlp().parameters(), lr=0.1)
    with pytest.raises(ValueError, match="4 parameters that are not the model's"):
        hs.Engine(mlp(), optimizer)


def test_engine_refuses_a_schedule_of_another_optimizer() -> None:
    other = torch.optim.SGD(mlp().parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(other, 1)
    with pytest.raises(ValueError, match="belongs to another optimizer"):
        make(schedule=schedule)


def test_engine_refuses_trainable_fp16_parameters() -> None:
    model = mlp().half()
    with pytest.raises(ValueError, match=r"parameter '0.weight' is FP16.*model.float\(\)"):
        hs.Engine(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_engine_refuses_an_optimizer_that_needs_a_closure() -> None:
    model = mlp()
    with pytest.raises(ValueError, match=r"LBFGS.step needs a closure"):
        hs.Engine(model, torch.optim.LBFGS(model.parameters()))


def test_engine_refuses_what_is_no_model_and_no_optimizer() -> None:
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module, or a mapping.*got str"):
        hs.Engine("model", None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"optimizer must be a torch.optim.Optimizer, .*got float"):
        hs.Engine(mlp(), 0.1)  # type: ignore[arg-type]
    frozen = mlp().requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter that requires a gradient"):
        hs.Engine(frozen, torch.optim.SGD(mlp().parameters(), lr=0.1))


@pytest.mark.parametrize(
    ("loss_of", "message"),
    [
        (lambda y: (y.sum(), 4), "got tuple; .* a guess would be silently wrong"),
        (lambda y: {"loss": y.sum()}, "got dict; .* further sums as keywords"),
        (lambda y: None, "got NoneType"),
        (lambda y: y.sum().item(), "got float"),
        (lambda y: y, r"must be a scalar, got a tensor of shape \(4, 1\)"),
        (lambda y: y.sum().long(), "floating-point tensor, got torch.int64"),
        (lambda y: torch.complex(y.sum(), y.sum()), "got torch.complex64"),
        (lambda y: y.sum().detach(), "the loss needs no gradient"),
        (lambda y: hs.LossSum(y.sum(), -1), "not negative, got -1"),
        (lambda y: hs.LossSum(y.sum(), math.nan), "must be finite and not negative, got nan"),
        (lambda y: hs.LossSum(y.sum(), torch.tensor(-1)), "not negative, got -1"),
        (lambda y: hs.LossSum(y.sum(), torch.tensor(math.nan)), "not negative, got nan"),
        (lambda y: hs.LossSum(y.sum(), torch.tensor(math.inf)), "not negative, got inf"),
        (lambda y: hs.LossSum(y.sum(), torch.tensor(True)), "a 0-d tensor, got bool"),
        (lambda y: hs.LossSum(y.sum(), torch.tensor(1j)), r"0-d real tensor, .* torch.complex64"),
        (lambda y: hs.LossSum(y.sum(), torch.ones(2)), r"0-d real tensor, .* \(2,\)"),
        (lambda y: hs.LossSum(y.sum(), "4"), "must be a number or a 0-d tensor, got str"),
        (
            lambda y: hs.LossSum(y.sum(), 4, hits=torch.ones(2)),
            "metric 'hits' must be a real scalar",
        ),
        (lambda y: hs.LossSum(y.sum(), 4, hits="3"), "metric 'hits' must be a number, got str"),
    ],
)
def test_train_step_refuses_a_loss(loss_of: Callable[[Tensor], Any], message: str) -> None:
    model, engine = make()
    before = snapshot(model, engine)
    with pytest.raises(hs.HalfstepError, match=message):
        engine.train_step([None], lambda m, _: loss_of(out(m)))
    assert differences(before, snapshot(model, engine)) == []
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("window", [torch.ones(2, 8), (1, 2), {"x": 1}, "text", 3], ids=repr)
def test_train_step_refuses_what_could_be_one_batch(window: Any) -> None:
    _, engine = make()
    with pytest.raises(TypeError, match=r"for a window of one batch write \[batch\]"):
        engine.train_step(window, lambda m, _: out(m).sum())


def test_train_step_refuses_an_empty_window() -> None:
    _, engine = make()
    with pytest.raises(ValueError, match="empty window"):
        engine.train_step([], lambda m, _: out(m).sum())


def test_step_without_backward_and_second_step_are_errors() -> None:
    model, engine = make()
    with pytest.raises(RuntimeError, match=r"step\(\) without backward\(\)"):
        engine.step()
    engine.backward(out(model).sum())
    engine.step()
    with pytest.raises(RuntimeError, match=r"step\(\) without backward\(\)"):
        engine.step()


def test_window_that_mixes_means_and_sums_is_an_error() -> None:
    model, engine = make()
    engine.backward(out(model).mean())
    with pytest.raises(RuntimeError, match="mean losses or LossSums, not both"):
        engine.backward(hs.LossSum(out(model).sum(), 4))


def test_mean_loss_with_a_token_schedule_is_an_error() -> None:
    model, engine = make(schedule=hs.TokenSchedule(lambda consumed: 1.0))
    with pytest.raises(TypeError, match="how many tokens a loss is made of"):
        engine.backward(out(model).mean())


def test_gradients_context_twice_or_too_early_is_an_error() -> None:
    model, engine = make()
    with pytest.raises(RuntimeError, match="this window has none yet"), engine.gradients():
        pass
    engine.backward(out(model).mean())
    with engine.gradients():
        pass
    with pytest.raises(RuntimeError, match="already used in this window"), engine.gradients():
        pass
    with pytest.raises(RuntimeError, match="would add scaled gradients to"):
        engine.backward(out(model).mean())


def test_train_step_inside_an_open_window_is_an_error_and_drops_nothing() -> None:
    model, engine = make()
    engine.backward(out(model).mean())
    with pytest.raises(RuntimeError, match="inside an open window"):
        engine.train_step([None], lambda m, _: out(m).mean())
    assert engine.step().updated


def test_gradients_made_without_the_engine_are_an_error() -> None:
    model, engine = make()
    out(model).mean().backward()
    with pytest.raises(RuntimeError, match=r"engine.backward\(\) of this window did not make"):
        engine.backward(out(model).mean())


def test_gradients_that_are_zeros_are_no_error() -> None:
    model, engine = make()
    out(model).mean().backward()
    engine.optimizer.zero_grad(set_to_none=False)
    engine.backward(out(model).mean())
    assert engine.step().updated


def test_state_inside_an_open_window_or_of_something_else_is_an_error() -> None:
    model, engine = make()
    with pytest.raises(ValueError, match="expected the state of an Engine"):
        engine.load_state_dict({"scale": 1.0})
    engine.backward(out(model).mean())
    with pytest.raises(RuntimeError, match="inside an open window"):
        engine.state_dict()


def test_state_with_another_kind_of_schedule_is_refused_and_changes_nothing() -> None:
    model, engine = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    other = hs.Engine(model, optimizer, precision="fp32", schedule=schedule)
    before = snapshot(engine)
    with pytest.raises(ValueError, match="saved with the schedule StepLR, this engine has None"):
        engine.load_state_dict(other.state_dict())
    assert differences(before, snapshot(engine)) == []


def test_sparse_gradients_end_the_switch_to_the_fused_kernel_with_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = nn.Embedding(5, 3, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = hs.Engine(model, optimizer, precision="fp32")
    with caplog.at_level(logging.INFO, "halfstep"):
        for _ in range(3):
            engine.train_step([torch.tensor([1])], lambda m, x: m(x).sum())
    assert [r.message for r in caplog.records if "not using" in r.message] == [
        "SGD: not using the fused kernel, which takes no sparse gradient"
    ]


@pytest.mark.parametrize("fuse", ["auto", False])
def test_sparse_gradients_work_with_an_optimizer_that_takes_them(fuse: str | bool) -> None:
    # oracle: the dense embedding with the same optimizer; row 1 is looked up twice
    weights = []
    for sparse in (False, True):
        torch.manual_seed(0)
        model = nn.Embedding(5, 3, sparse=sparse)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        engine = hs.Engine(
            model, optimizer, precision="fp32", loss_scale=8.0, max_norm=1.0, fuse=fuse
        )
        ids = torch.tensor([1, 1, 4])
        for _ in range(2):
            outcome = engine.train_step([ids], lambda m, x: F.mse_loss(m(x), torch.ones(3, 3)))
            assert outcome.updated
        weights.append(model.weight.detach())
    assert torch.allclose(weights[0], weights[1], rtol=1e-6, atol=0)


def test_sparse_gradients_with_an_optimizer_fused_by_the_user_are_one_sentence() -> None:
    model = nn.Embedding(5, 3, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, fused=True)
    engine = hs.Engine(model, optimizer, precision="fp32")
    with pytest.raises(ValueError, match=r"takes no sparse gradient; build it without fused=True"):
        engine.train_step([torch.tensor([1])], lambda m, x: m(x).sum())


def test_complex_and_mixed_dtypes_are_right() -> None:
    # oracle: SGD by hand on the closed-form gradient of |w|^2, which is 2w
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c = Parameter(torch.tensor([1.0 + 2.0j]))
            self.d = Parameter(torch.tensor([3.0], dtype=torch.float64))
            self.f = Parameter(torch.tensor([2.0]))

        def forward(self) -> Tensor:
            return self.c.abs().square().sum() + self.d.square().sum() + self.f.square().sum()

    model = Mixed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    engine = hs.Engine(model, optimizer, precision="fp32", loss_scale=16.0)
    outcome = engine.train_step([None], lambda m, _: m())
    assert outcome.grad_norm == pytest.approx(2 * math.sqrt(5 + 9 + 4), rel=1e-6)
    assert (model.c.item(), model.d.item(), model.f.item()) == (0.5 + 1.0j, 1.5, 1.0)


def test_gradients_cleared_inside_a_window_are_an_error() -> None:
    # the line that stays behind when a stock loop is converted
    model, engine = make()
    engine.backward(out(model).mean())
    engine.optimizer.zero_grad()
    with pytest.raises(RuntimeError, match=r"cleared between two backward\(\) calls; remove the"):
        engine.backward(out(model).mean())


def test_gradients_zeroed_before_the_step_warn_once(caplog: pytest.LogCaptureFixture) -> None:
    model, engine = make()
    for _ in range(2):
        engine.backward(out(model).mean())
        engine.optimizer.zero_grad(set_to_none=False)
        assert engine.step().grad_norm == 0.0
    assert caplog.text.count("every gradient is exactly 0") == 1


def test_schedule_that_fails_says_that_the_update_was_made() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=2)
    engine = hs.Engine(model, optimizer, precision="fp32", schedule=schedule)
    for _ in range(2):
        engine.train_step([None], lambda m, _: out(m).mean())
    with pytest.raises(RuntimeError, match=r"failed after update 3 was made .* Tried to step"):
        engine.train_step([None], lambda m, _: out(m).mean())
    assert engine.num_updates == 3


@pytest.mark.parametrize("factor", [-1.0, math.nan, math.inf])
def test_token_schedule_with_a_factor_that_cannot_be_is_refused(factor: float) -> None:
    with pytest.raises(ValueError, match="factor must be finite and not negative, got"):
        make(schedule=hs.TokenSchedule(lambda consumed: factor))


def test_fp16_loss_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    # its gradient is the scale itself, and 65536 is inf in FP16
    _, engine = make(precision="fp16")
    outcomes = [engine.train_step([None], lambda m, _: out(m).mean()) for _ in range(2)]
    assert [outcome.updated for outcome in outcomes] == [False, True]
    assert caplog.text.count("the loss is FP16") == 1


def test_parameters_in_no_group_are_named(caplog: pytest.LogCaptureFixture) -> None:
    model = mlp()
    hs.Engine(model, torch.optim.SGD(model[2].parameters(), lr=0.1), precision="fp32")
    assert (
        "2 trainable parameters are in no group of the optimizer (first: 0.weight)" in caplog.text
    )


def test_gradients_mapping_cannot_be_assigned_to() -> None:
    model, engine = make()
    engine.backward(out(model).mean())
    with engine.gradients() as grads, pytest.raises(TypeError, match="item assignment"):
        grads["0.weight"] = torch.zeros(1)  # type: ignore[index]


@pytest.mark.parametrize(("count", "names"), [(3, "0, 1, 2"), (4, "0, 1, 2, ...")])
def test_parameters_without_a_gradient_are_named_three_at_most(count: int, names: str) -> None:
    model = nn.ParameterList([nn.Parameter(torch.ones(1)) for _ in range(count)])
    engine = hs.Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), precision="fp32")
    loss = torch.zeros((), requires_grad=True)
    engine.backward(loss)
    with pytest.raises(hs.CallOrderError, match=rf"\({names}\)".replace(".", r"\.")):
        engine.step()
