"""The formula on floats and the formula on device tensors are one formula."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from halfstep.update.decision.multiplier import factors_on_device, factors_on_host
from halfstep.update.optimizers.gradients import divide_

EPS = torch.finfo(torch.float32).eps
GRADS = [torch.ones(1)]
LARGEST = torch.finfo(torch.float32).max
numbers = st.floats(1e-6, 1e6)


@given(norm=numbers, unit=numbers, max_norm=st.none() | numbers)
def test_decision_on_host_and_device_agree(
    norm: float, unit: float, max_norm: float | None
) -> None:
    host = factors_on_host(norm, unit, max_norm, GRADS)
    wide = torch.float64
    device = factors_on_device(
        torch.tensor(norm, dtype=wide), torch.tensor(unit, dtype=wide), max_norm, LARGEST
    )
    assert host.found_inf == device.found_inf.item() == 0.0
    assert device.grad_norm.item() == pytest.approx(host.grad_norm, rel=EPS)
    assert float(device.clip_coef) == pytest.approx(host.clip_coef, rel=EPS)
    assert isinstance(device.multiplier, Tensor)
    assert device.multiplier.item() == pytest.approx(host.multiplier, rel=EPS)
    assert device.multiplier.dtype is device.found_inf.dtype is torch.float32


@pytest.mark.parametrize("norm", [math.inf, math.nan], ids=str)
def test_decision_of_a_bad_norm_is_exactly_one(norm: float) -> None:
    # fused kernels skip on 1.0 only; 2.0, a sum over devices, would apply the step
    assert factors_on_host(norm, 1.0, 1.0, GRADS).found_inf == 1.0
    device = factors_on_device(torch.tensor(norm).double(), torch.ones(()).double(), 1.0, LARGEST)
    assert device.found_inf.item() == 1.0


def test_decision_clips_by_torchs_formula() -> None:
    # oracle: torch.nn.utils.clip_grad_norm_ on the same gradient
    p = torch.nn.Parameter(torch.zeros(2))
    p.grad = torch.tensor([3.0, 4.0])
    torch.nn.utils.clip_grad_norm_([p], 1.0)
    decision = factors_on_host(5.0 * 8, 8.0, 1.0, GRADS)
    assert p.grad is not None
    assert 3.0 * 8 / decision.multiplier == pytest.approx(p.grad[0].item(), rel=2 * EPS)


def test_decision_checks_what_the_division_makes() -> None:
    # 60000 times 4 is beyond FP16 although 60000 is finite
    grads = [torch.tensor([60000.0], dtype=torch.float16)]
    assert factors_on_host(60000.0, 0.25, None, grads).found_inf == 1.0
    assert factors_on_host(60000.0, 1.0, None, grads).found_inf == 0.0
    wide = torch.tensor(60000.0, dtype=torch.float64)
    largest = torch.finfo(torch.float16).max
    assert factors_on_device(wide, torch.tensor(0.25).double(), None, largest).found_inf == 1.0


def test_decision_looks_at_elements_where_only_the_norm_is_too_large() -> None:
    # four times 60000: the norm is 120000, no element overflows
    grads = [torch.full((4,), 60000.0, dtype=torch.float16)]
    assert factors_on_host(120000.0, 1.0, None, grads).found_inf == 0.0


@given(exponent=st.integers(-200, 200))
def test_divide_by_any_power_of_two_is_exact_where_the_result_is(exponent: int) -> None:
    grad = torch.tensor([2.0**-10 if exponent < 0 else 2.0**60])
    wanted = float(grad) / 2.0**exponent
    divide_([grad], 2.0**exponent)
    if 2.0**-126 <= wanted <= 2.0**127:
        assert grad.item() == wanted


EXPONENTS = [-265, -160, -149, -140, -127, -126, 126, 127, 128, 150, 255]


@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("mantissa", [1.0, 1.2743719])
def test_divide_by_a_number_at_or_beyond_the_ends_of_float32_is_right_to_2_eps(
    exponent: int, mantissa: float
) -> None:
    # oracle: the quotient in float64. A subnormal float32 divisor would have fewer digits
    divisor = mantissa * 2.0**exponent
    grad = torch.tensor([1.7 * 2.0 ** min(exponent // 2, exponent + 125)])
    wanted = float(grad) / divisor
    divide_([grad], divisor)
    smallest = torch.finfo(torch.float32).smallest_normal * EPS
    assert grad.item() == pytest.approx(wanted, rel=2 * EPS, abs=smallest)


def plain_decision(
    norm: Tensor, unit: Tensor, max_norm: float | None, largest: float, limited: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Oracle: the formula of the module's docstring, one scalar operation after the other."""
    grad_norm = norm / unit
    coef = torch.ones_like(grad_norm)
    if max_norm is not None:
        coef = (max_norm / ((grad_norm if limited is None else limited) + 1e-6)).clamp(max=1.0)
    multiplier = unit / coef
    in_range = (multiplier >= 2.0**-126) & (multiplier <= 2.0**127)
    applicable = (unit > 0) & (grad_norm * coef <= largest) & in_range
    return (~applicable).float(), multiplier.float()


anything = st.floats(width=64) | st.sampled_from([0.0, 1.0, 2.0**128, 2.0**-130, 1e39, -1.0])
norms = st.floats(0.0, math.inf) | st.just(math.nan)
limits = st.none() | st.floats(1e-30, 1e30) | st.sampled_from([1.0, LARGEST, 1e39, math.inf])


@settings(max_examples=400)
@given(st.lists(st.tuples(norms, anything), min_size=1, max_size=3), limits, st.booleans())
def test_decision_side_by_side_equals_the_plain_formula_to_the_bit(
    cases: list[tuple[float, float]], max_norm: float | None, is_joint: bool
) -> None:
    wide = torch.tensor(cases, dtype=torch.float64)
    norm, unit = (wide[0] if len(cases) == 1 else wide).unbind(-1)
    limited = torch.tensor(3.0, dtype=torch.float64) if is_joint else None
    found = factors_on_device(norm, unit, max_norm, LARGEST, limited)
    wanted = plain_decision(norm, unit, max_norm, LARGEST, limited)
    assert torch.equal(found.found_inf, wanted[0])
    happens = wanted[0] == 0
    assert isinstance(found.multiplier, Tensor)
    assert torch.equal(found.multiplier[happens], wanted[1][happens])
    for each, (own_norm, own_unit) in enumerate(cases):
        # what the host knows takes no operation, and changes nothing
        known = factors_on_device(
            torch.tensor(own_norm, dtype=torch.float64), own_unit, max_norm, LARGEST, limited
        )
        assert known.found_inf == wanted[0].reshape(-1)[each]
        if not known.found_inf:
            assert torch.as_tensor(known.multiplier).float() == wanted[1].reshape(-1)[each]


def test_decision_with_limits_of_their_own_clips_each_by_its_own() -> None:
    # oracle: one decision after the other
    norm = torch.tensor([4.0, 4.0, 4.0], dtype=torch.float64)
    found = factors_on_device(
        norm, 2.0, torch.tensor([1.0, math.inf, 0.5], dtype=torch.float64), LARGEST
    )
    assert isinstance(found.clip_coef, Tensor)
    for each, limit in enumerate([1.0, None, 0.5]):
        alone = factors_on_device(norm[each], 2.0, limit, LARGEST)
        assert found.clip_coef[each] == alone.clip_coef
        assert found.found_inf[each] == alone.found_inf == 0.0
