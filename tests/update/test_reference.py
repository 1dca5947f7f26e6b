"""The update by one multiplier against a float64 reference, for every optimizer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

import halfstep as hs
from halfstep.update import Window
from optimizers import CASES, make_optimizer, make_reference
from updates import one_update, run_update

EPS = torch.finfo(torch.float32).eps
SHAPES = [(3, 5), (7,), (2, 2, 2), (9000,)]


def gradients(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) * 3 for shape in SHAPES]


def window_of(num_micro_batches: int) -> Window:
    window = Window()
    for _ in range(num_micro_batches):
        window.add(torch.zeros(()), None, {})
    return window


def after_three_steps(
    case: tuple[str, str], scale: float, max_norm: float | None
) -> list[Parameter]:
    torch.manual_seed(0)
    params = [Parameter(torch.randn(shape)) for shape in SHAPES]
    update = one_update(make_optimizer(case, params), hs.StaticLossScale(scale), max_norm=max_norm)
    for seed in range(4):
        for p, grad in zip(params, gradients(seed), strict=True):
            p.grad = grad * scale
        assert run_update(update, window_of(3)).updated
    return params


def run_reference(case: tuple[str, str], max_norm: float | None) -> list[Tensor]:
    """Mean over three micro-batches, torch's clip formula, torch's plain loop: all in float64."""
    torch.manual_seed(0)
    params = [Parameter(torch.randn(shape).double()) for shape in SHAPES]
    optimizer = make_reference(case, params)
    for seed in range(4):
        grads = [grad.double() / 3 for grad in gradients(seed)]
        norm = torch.cat([grad.flatten() for grad in grads]).norm()
        coef = 1.0 if max_norm is None else min(1.0, max_norm / (float(norm) + 1e-6))
        for p, grad in zip(params, grads, strict=True):
            p.grad = grad * coef
        optimizer.step()
    return [p.detach() for p in params]


@pytest.mark.parametrize("max_norm", [None, 1.0, 1e6])
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_update_of_any_optimizer_equals_float64_within_rounding(
    case: tuple[str, str], max_norm: float | None
) -> None:
    found = after_three_steps(case, 2.0**10, max_norm)
    wanted = run_reference(case, max_norm)
    for p, reference in zip(found, wanted, strict=True):
        size = reference.abs().max()
        assert (p.detach().double() - reference).abs().max() <= 16 * EPS * size


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_update_for_powers_of_two_does_not_change_a_bit(case: tuple[str, str]) -> None:
    # oracle: scaling by a power of two is exact in binary floating point
    plain = after_three_steps(case, 1.0, 1.0)
    for exponent in (-3, 1, 10, 16, 24):
        scaled = after_three_steps(case, 2.0**exponent, 1.0)
        assert all(torch.equal(a, b) for a, b in zip(plain, scaled, strict=True))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_first_update_in_float64_keeps_float64_accuracy(momentum: float) -> None:
    # oracle: closed form of SGD, whose first momentum is the gradient; 0.3 is no float32
    p = Parameter(torch.tensor([1.0], dtype=torch.float64))
    optimizer = torch.optim.SGD([p], lr=1.0, momentum=momentum, fused=True)
    update = one_update(optimizer, hs.StaticLossScale(3.0))
    window = window_of(1)
    window.divisor = 0.1
    p.grad = torch.tensor([0.03], dtype=torch.float64)
    run_update(update, window)
    assert abs(p.item() - 0.9) <= 2 * torch.finfo(torch.float64).eps


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("sign", [-1, 1])
def test_first_update_with_a_multiplier_beyond_float32_is_still_right(
    sign: int, fused: bool, momentum: float
) -> None:
    # oracle: closed form; 2^120 carries 2^140, SGD with lr 1 moves the weight by 2^-20
    p = Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([p], lr=1.0, momentum=momentum, fused=fused)
    update = one_update(optimizer, hs.StaticLossScale(2.0**100))
    window = window_of(1)
    window.divisor = 2.0 ** (sign * 140 - 100)
    p.grad = torch.full((1,), 2.0 ** (sign * 120))
    assert run_update(update, window).updated
    assert p.item() == -(2.0 ** (sign * -20))
