"""The road without a host decision, driven on a CPU.

The fused CPU kernels hold on `found_inf` as the CUDA ones do, so the device arithmetic, the late
commit and the masked loss scale can be tested without a GPU. Only the wait is missing.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

import halfstep as hs
from halfstep.update import Joint, OptimizerSlot, Update, Window
from halfstep.update.decision.measured import Measured
from halfstep.update.optimizers.norm import _device_norm
from halfstep.update.ranks.ranks import ONE, Ranks
from optimizers import FUSED_CASES, make_optimizer
from snapshots import differences, snapshot
from updates import run_update

EPS = torch.finfo(torch.float32).eps


class DeviceLane(OptimizerSlot):
    """Takes the norm as on an accelerator, so that the kernel decides wherever it can."""

    def measure(self, ranks: Ranks = ONE) -> Measured:
        share = super().measure(ranks)
        return replace(share, norm=_device_norm(share.grads))


def make(
    kind: type[OptimizerSlot], case: tuple[str, str]
) -> tuple[list[Parameter], Optimizer, Update]:
    torch.manual_seed(0)
    params = [Parameter(torch.randn(shape)) for shape in [(3, 4), (5,)]]
    optimizer = make_optimizer(case, params)
    scale = hs.DynamicLossScale(2.0**4, growth_interval=2)
    return params, optimizer, Update([kind("optimizer", optimizer, scale, max_norm=1.0)])


def run(
    update: Update, params: Sequence[Parameter], factor: float, divisor: float | Tensor | None
) -> hs.StepOutcome:
    generator = torch.Generator().manual_seed(1)
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator) * factor
    window = Window()
    window.add(torch.tensor(6.0), divisor, {"correct": torch.tensor(4.0)})
    return run_update(update, window)


FACTORS = [1.0, 30.0, math.inf, 1.0, math.nan, 2.0, 2.0]


@pytest.mark.parametrize("case", FUSED_CASES, ids="-".join)
@pytest.mark.parametrize("divisor", [None, 3.0, torch.tensor(3.0, dtype=torch.float64)])
def test_undecided_steps_equal_decided_ones(
    case: tuple[str, str], divisor: float | Tensor | None
) -> None:
    # oracle: the host road, which test_reference.py compares with float64
    records, weights = [], []
    for kind in (OptimizerSlot, DeviceLane):
        params, _, update = make(kind, case)
        outcomes = [run(update, params, factor, divisor) for factor in FACTORS]
        records.append([outcome.record for outcome in outcomes])
        weights.append([p.detach().clone() for p in params])
    for host, device in zip(*records, strict=True):
        for field in ("step", "updated", "reason", "loss_scale", "next_loss_scale", "lr"):
            assert getattr(host, field) == getattr(device, field)
        assert host.consumed == device.consumed
        assert host.metrics == device.metrics
        if host.updated:
            assert device.grad_norm == pytest.approx(host.grad_norm, rel=8 * EPS)
            assert device.clip_coef == pytest.approx(host.clip_coef, rel=8 * EPS)
    for host_weight, device_weight in zip(*weights, strict=True):
        assert torch.allclose(host_weight, device_weight, rtol=16 * EPS, atol=16 * EPS)


@pytest.mark.parametrize("case", FUSED_CASES, ids="-".join)
def test_undecided_skip_moves_no_bit(case: tuple[str, str]) -> None:
    params, optimizer, update = make(DeviceLane, case)
    run(update, params, 1.0, None)
    run(update, params, 1.0, None)
    before = snapshot(optimizer) + [p.detach().clone() for p in params]
    assert run(update, params, math.inf, None).skipped
    assert differences(before, snapshot(optimizer) + [p.detach().clone() for p in params]) == []


def test_undecided_first_step_is_decided_by_the_host() -> None:
    # torch makes fused state uninitialised: a held first step would leave it so
    params, optimizer, update = make(DeviceLane, ("momentum", "fused"))
    assert run(update, params, math.inf, None).skipped
    assert optimizer.state_dict()["state"] == {}


def test_undecided_step_commits_before_the_next_one_or_on_a_look() -> None:
    params, _, update = make(DeviceLane, ("adamw", "fused"))
    run(update, params, 1.0, None)
    outcome = run(update, params, 1.0, None)
    assert update.counters.num_updates == 1
    later = run(update, params, 1.0, None)
    assert update.counters.num_updates == 2
    assert later.updated
    assert update.counters.num_updates == 3
    assert outcome.step == 2


@pytest.mark.parametrize("kind", [OptimizerSlot, DeviceLane])
def test_outcome_that_nobody_looked_at_holds_no_gradient(kind: type[OptimizerSlot]) -> None:
    # else a loop that keeps its last outcome pays for two sets of gradients in backward
    params, _, update = make(kind, ("adamw", "fused"))
    run(update, params, 1.0, 3.0)
    for p in params:
        p.grad = torch.ones_like(p)
    gradients = [weakref.ref(p.grad) for p in params]
    window = Window()
    window.add(torch.tensor(6.0), 3.0, {})
    outcome = run_update(update, window)
    assert [gradient() for gradient in gradients] == [None, None]
    assert outcome.loss == 2.0


@pytest.mark.parametrize("divisor", [0.0, torch.tensor(0.0, dtype=torch.float64)])
def test_undecided_empty_window_leaves_the_loss_scale(divisor: float | Tensor) -> None:
    params, _, update = make(DeviceLane, ("adamw", "fused"))
    run(update, params, 1.0, 1.0)
    state = update.slots[0].loss_scale.state_dict()
    before = [p.detach().clone() for p in params]
    outcome = run(update, params, 1.0, divisor)
    assert (outcome.updated, outcome.reason) == (False, "empty_window")
    assert update.slots[0].loss_scale.state_dict() == state
    assert all(torch.equal(a, b) for a, b in zip(before, params, strict=True))


@pytest.mark.parametrize("divisor", [math.nan, -1.0, math.inf])
def test_undecided_divisor_that_cannot_be_holds_and_is_an_error(divisor: float) -> None:
    params, _, update = make(DeviceLane, ("adamw", "fused"))
    run(update, params, 1.0, 1.0)
    before = [p.detach().clone() for p in params]
    outcome = run(update, params, 1.0, torch.tensor(divisor, dtype=torch.float64))
    with pytest.raises(ValueError, match="divisors of this window add up to"):
        outcome.record  # noqa: B018
    assert all(torch.equal(a, b) for a, b in zip(before, params, strict=True))


def make_two(kind: type[OptimizerSlot], overflow: str) -> tuple[list[Parameter], Update]:
    torch.manual_seed(0)
    params = [Parameter(torch.randn(6)), Parameter(torch.randn(3, 2))]
    scale = hs.DynamicLossScale(2.0**4, growth_interval=3)
    slots = [
        kind(name, torch.optim.AdamW([p], lr=0.1, fused=True), scale)
        for name, p in zip(("first", "second"), params, strict=True)
    ]
    return params, Update(slots, joint=Joint(1.0), overflow=overflow)


def run_two(
    update: Update, params: Sequence[Parameter], factors: Sequence[float]
) -> hs.StepOutcome:
    generator = torch.Generator().manual_seed(1)
    for p, slot, factor in zip(params, update.slots, factors, strict=True):
        p.grad = torch.randn(p.shape, generator=generator) * factor
        slot.window.add(torch.tensor(6.0), 3.0, {}, number=1)
    return update.run(update.slots)


@pytest.mark.parametrize("overflow", ["together", "independent"])
def test_undecided_steps_of_two_optimizers_equal_decided_ones(overflow: str) -> None:
    # oracle: the host road, which test_several_optimizers.py compares with stock torch
    steps = [(1.0, 1.0), (2.0, 0.5), (math.inf, 1.0), (1.0, math.nan), (1.0, 3.0), (1.0, 1.0)]
    records, weights, scales = [], [], []
    for kind in (OptimizerSlot, DeviceLane):
        params, update = make_two(kind, overflow)
        records.append([run_two(update, params, factors).record for factors in steps])
        weights.append([p.detach().clone() for p in params])
        scales.append(update.slots[0].loss_scale.state_dict())
    assert scales[0] == scales[1]
    for host, device in zip(*records, strict=True):
        parts = zip(host.per_optimizer.values(), device.per_optimizer.values(), strict=True)
        for left, right in [(host, device), *parts]:
            assert (left.updated, left.reason) == (right.updated, right.reason)
            assert left.consumed == right.consumed
            assert left.clip_coef == pytest.approx(right.clip_coef, rel=8 * EPS)
    for host_weight, device_weight in zip(*weights, strict=True):
        assert torch.allclose(host_weight, device_weight, rtol=16 * EPS, atol=16 * EPS)


@pytest.mark.parametrize("kind", [OptimizerSlot, DeviceLane])
def test_empty_window_of_one_optimizer_does_not_stop_the_other(kind: type[OptimizerSlot]) -> None:
    params, update = make_two(kind, "together")
    for divisors in [(2.0, 2.0), (0.0, 2.0), (2.0, 2.0)]:
        for slot, divisor in zip(update.slots, divisors, strict=True):
            for p in slot.parameters():
                p.grad = torch.ones_like(p)
            slot.window = Window()
            slot.window.add(torch.tensor(1.0), divisor, {})
        before = [p.detach().clone() for p in params]
        parts = list(update.run(update.slots).per_optimizer.values())
        assert [r.reason for r in parts] == ["empty_window" if d == 0 else None for d in divisors]
        moved = [not torch.equal(p, b) for p, b in zip(params, before, strict=True)]
        owners = [any(p is q for q in update.slots[1].parameters()) for p in params]
        assert moved == [is_second or divisors[0] > 0 for is_second in owners]
