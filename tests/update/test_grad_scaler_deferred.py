"""The drop-in scaler where the kernel decides, driven on a CPU as in test_deferred.py."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

import halfstep as hs
from optimizers import FUSED_CASES, make_optimizer
from snapshots import differences, snapshot

EPS = torch.finfo(torch.float32).eps
ADAMW = ("adamw", "fused")
MAX_NORM = 0.5

pytestmark = pytest.mark.usefixtures("kernel_decides")


def make(case: tuple[str, str]) -> tuple[list[Parameter], Optimizer]:
    torch.manual_seed(0)
    params = [Parameter(torch.randn(shape)) for shape in [(3, 4), (5,)]]
    return params, make_optimizer(case, params)


def loss_of(params: list[Parameter], factor: float) -> Tensor:
    """Its gradient is `factor` times the weights."""
    return sum((p.square().sum() for p in params), torch.zeros(())) * (factor / 2)


def step(
    scaler: torch.amp.GradScaler,
    params: list[Parameter],
    optimizer: Optimizer,
    factor: float = 1.0,
    *,
    unscales: bool = False,
) -> None:
    """One step, clipped by torch's calls or, without `unscales`, by the drop-in's own."""
    scaler.scale(loss_of(params, factor)).backward()
    if isinstance(scaler, hs.GradScaler) and not unscales:
        scaler.clip_grad_norm_(optimizer, MAX_NORM)
    else:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(params, MAX_NORM)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


@pytest.mark.parametrize("unscales", [False, True])
@pytest.mark.parametrize("case", FUSED_CASES, ids="-".join)
def test_steps_decided_by_the_kernel_give_torchs_weights_and_scale(
    case: tuple[str, str], unscales: bool
) -> None:
    # oracle: torch.amp.GradScaler in its documented loop
    weights, scales = [], []
    for kind in (torch.amp.GradScaler, hs.GradScaler):
        scaler = kind("cpu", init_scale=2.0**10, growth_interval=2)
        params, optimizer = make(case)
        for factor in (1.0, 1.0, math.inf, 1.0, math.nan, 0.01, 1.0):
            step(scaler, params, optimizer, factor, unscales=unscales)
        weights.append([p.detach() for p in params])
        scales.append(scaler.get_scale())
    assert scales[0] == scales[1]
    for wanted, found in zip(*weights, strict=True):
        assert torch.allclose(wanted, found, rtol=32 * EPS, atol=32 * EPS)


@pytest.mark.parametrize("bad", [math.inf, math.nan], ids=str)
@pytest.mark.parametrize("case", FUSED_CASES, ids="-".join)
def test_step_skipped_by_the_kernel_moves_no_bit_and_says_so(
    case: tuple[str, str], bad: float
) -> None:
    scaler = hs.GradScaler("cpu", init_scale=2.0**10)
    params, optimizer = make(case)
    step(scaler, params, optimizer)
    before = [*snapshot(optimizer), *(p.detach().clone() for p in params)]
    step(scaler, params, optimizer, bad)
    assert differences(before, [*snapshot(optimizer), *(p.detach() for p in params)]) == []
    assert scaler.last_outcome is not None
    assert (scaler.last_outcome.skipped, scaler.last_outcome.reason) == (True, "non_finite")
    assert scaler.last_outcome.step == 2
    assert scaler.get_scale() == 2.0**9


def test_outcome_read_after_the_update_is_that_of_its_window() -> None:
    # oracle: float64, and torch's clip formula
    scaler = hs.GradScaler("cpu", init_scale=2.0**10, growth_interval=1)
    params, optimizer = make(ADAMW)
    step(scaler, params, optimizer)
    norm = math.sqrt(sum(float(p.detach().double().square().sum()) for p in params))
    step(scaler, params, optimizer)
    outcome = scaler.last_outcome
    assert outcome is not None
    assert (outcome.step, outcome.updated, outcome.reason, outcome.lr) == (2, True, None, 1e-2)
    assert (outcome.loss_scale, scaler.get_scale()) == (2.0**11, 2.0**12)
    assert outcome.grad_norm == pytest.approx(norm, rel=8 * EPS)
    assert outcome.clip_coef == pytest.approx(MAX_NORM / (norm + 1e-6), rel=8 * EPS)
    assert math.isnan(outcome.loss)


@pytest.mark.parametrize("unscales", [False, True])
def test_overflow_is_left_to_the_kernel_as_a_flag_of_exactly_one(
    unscales: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a flag of 2.0, the sum of what unscale_ and step find, would apply the step
    flags: list[float] = []
    kernel = torch._fused_adamw_

    def record(*args: Any, found_inf: Tensor | None, **options: Any) -> None:
        if found_inf is not None:  # the first step is the host's
            flags.append(float(found_inf))
        kernel(*args, found_inf=found_inf, **options)

    monkeypatch.setattr(torch, "_fused_adamw_", record)
    scaler = hs.GradScaler("cpu")
    params, optimizer = make(ADAMW)
    for factor in (1.0, 1.0, math.inf, math.nan, 1.0):
        step(scaler, params, optimizer, factor, unscales=unscales)
    assert flags == [0.0, 1.0, 1.0, 0.0]


def test_overflow_papered_over_after_unscale_is_skipped_by_the_kernel() -> None:
    scaler = hs.GradScaler("cpu", init_scale=2.0**10)
    params, optimizer = make(ADAMW)
    step(scaler, params, optimizer)
    before = [*snapshot(optimizer), *(p.detach().clone() for p in params)]
    scaler.scale(loss_of(params, math.inf)).backward()
    scaler.unscale_(optimizer)
    for p in params:
        assert p.grad is not None
        p.grad.nan_to_num_(0.0, 0.0, 0.0)
    scaler.step(optimizer)
    scaler.update()
    assert scaler.last_outcome is not None
    assert scaler.last_outcome.skipped
    assert differences(before, [*snapshot(optimizer), *(p.detach() for p in params)]) == []
    assert scaler.get_scale() == 2.0**9


def test_overflow_in_one_of_two_optimizers_lowers_the_scale_once() -> None:
    # as in torch each optimizer skips by itself
    scaler = hs.GradScaler("cpu", init_scale=2.0**10)
    made = [make(ADAMW), make(ADAMW)]
    for factors in ((1.0, 1.0), (1.0, math.inf)):
        before = [params[0].detach().clone() for params, _ in made]
        losses = [loss_of(params, f) for (params, _), f in zip(made, factors, strict=True)]
        scaler.scale(losses[0] + losses[1]).backward()
        for _, optimizer in made:
            scaler.step(optimizer)
        scaler.update()
        for _, optimizer in made:
            optimizer.zero_grad()
    moved = [not torch.equal(b, params[0]) for b, (params, _) in zip(before, made, strict=True)]
    assert moved == [True, False]
    assert scaler.get_scale() == 2.0**9


def test_momentum_that_only_some_parameters_have_is_not_left_to_the_kernel() -> None:
    # oracle: torch's plain loop in float64
    wide = [Parameter(torch.ones(2, dtype=torch.float64)) for _ in range(2)]
    narrow = [Parameter(torch.ones(2)) for _ in range(2)]
    reference = torch.optim.SGD(wide, lr=0.1, momentum=0.9, foreach=False)
    optimizer = torch.optim.SGD(narrow, lr=0.1, momentum=0.9, fused=True)
    scaler = hs.GradScaler("cpu", init_scale=8.0)
    for used in (1, 2, 2):
        sum((p.sum() for p in wide[:used]), torch.zeros(())).backward()
        reference.step()
        reference.zero_grad()
        scaler.scale(sum((p.sum() for p in narrow[:used]), torch.zeros(()))).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    for p, q in zip(narrow, wide, strict=True):
        assert (p.double() - q).abs().max() <= 8 * EPS
