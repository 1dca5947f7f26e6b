"""A run that cannot live in FP16 may go on as a whole in another format, loudly."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import halfstep as hs
from snapshots import differences, snapshot


class Hot(nn.Module):
    """Its activations are beyond 65504: inf in FP16 at any loss scale."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.head(self.body(x) * 1e6) * 1e-6)


def make(**settings: Any) -> tuple[nn.Module, hs.Engine]:
    torch.manual_seed(0)
    model = Hot()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scale = hs.DynamicLossScale(2.0**4, max_consecutive_skips=3)
    settings = {"precision": "fp16", "loss_scale": scale, **settings}
    return model, hs.Engine(model, optimizer, **settings)


def loss_fn(model: nn.Module, x: Tensor) -> Tensor:
    return F.mse_loss(model(x).float(), torch.ones(len(x), 1))


def test_collapse_is_raised_by_default() -> None:
    _, engine = make()
    for _ in range(2):
        engine.train_step([torch.ones(4, 8)], loss_fn)
    with pytest.raises(hs.ScaleCollapse):
        engine.train_step([torch.ones(4, 8)], loss_fn)


@pytest.mark.parametrize("target", ["bf16", "fp32"])
def test_run_falls_back_says_so_and_learns(target: str, caplog: pytest.LogCaptureFixture) -> None:
    model, engine = make(on_collapse=target)
    before = snapshot(model)
    outcomes = [engine.train_step([torch.ones(4, 8)], loss_fn) for _ in range(3)]
    assert [outcome.fallback for outcome in outcomes] == [None, None, target]
    assert differences(before, snapshot(model)) == []
    assert str(outcomes[-1]).endswith(f"skipped=True reason=non_finite fallback={target}")
    assert f"The run goes on in {target}." in caplog.text
    assert engine.policy.format == target
    assert float(engine.loss_scale.value) == 1.0
    later = [engine.train_step([torch.ones(4, 8)], loss_fn) for _ in range(30)]
    assert all(outcome.updated for outcome in later)
    assert later[-1].loss < 0.5 * later[0].loss


def test_run_that_is_nan_in_the_other_format_too_collapses() -> None:
    _, engine = make(on_collapse="fp32")
    bad = torch.full((4, 8), math.nan)
    for _ in range(3):
        engine.train_step([bad], loss_fn)
    assert engine.policy.format == "fp32"
    for _ in range(49):
        engine.train_step([bad], loss_fn)
    with pytest.raises(hs.ScaleCollapse, match="50 updates in a row"):
        engine.train_step([bad], loss_fn)


def test_state_of_a_run_that_fell_back_goes_on_in_the_other_format() -> None:
    straight, engine = make(on_collapse="fp32")
    for _ in range(6):
        engine.train_step([torch.ones(4, 8)], loss_fn)
    saved = snapshot(straight, engine.optimizer, engine)
    resumed, other = make(on_collapse="fp32")
    for owner, state in zip((resumed, other.optimizer, other), saved, strict=True):
        owner.load_state_dict(state)
    assert other.policy.format == "fp32"
    for both in (engine, other):
        both.train_step([torch.ones(4, 8)], loss_fn)
    assert differences(snapshot(straight, engine), snapshot(resumed, other)) == []


def test_setting_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="on_collapse must be 'raise', 'bf16' or 'fp32'"):
        make(on_collapse="tf32")


def test_state_of_a_run_that_goes_on_in_fp16_does_not_make_another_fall_back() -> None:
    state = make(on_collapse="bf16")[1].state_dict()
    engine = make(on_collapse="bf16")[1]
    engine.load_state_dict(state)
    assert engine.policy.format == "fp16"
    assert isinstance(engine.loss_scale, hs.DynamicLossScale)
