"""The formula on floats and the formula on device tensors are one formula."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

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
    assert isinstance(device.multiplier, torch.Tensor)
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
