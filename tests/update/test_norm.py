"""The gradient norm is right to 8 eps at any size and for any values."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from halfstep.update.optimizers.norm import GradientNorm

EPS = torch.finfo(torch.float32).eps


def exact(grads: list[Tensor]) -> float:
    """Oracle: math.fsum of float64 squares relative to the largest."""
    flat = torch.cat(
        [torch.view_as_real(g).flatten() if g.is_complex() else g.flatten() for g in grads]
    )
    values = flat.double()
    peak = values.abs().max().item()
    return peak * math.sqrt(math.fsum(((values / peak) ** 2).tolist())) if peak else 0.0


@pytest.mark.parametrize("size", [1, 63, 4096, 8192, 9001, 300_000, 1_000_003])
@pytest.mark.parametrize("value", [1.2743719, 0.7195377, 1e-3])
def test_norm_of_constant_gradients_is_right_to_8_eps(size: int, value: float) -> None:
    # constants are the worst case: every addition rounds the same way. Oracle: closed form
    grad = torch.full((size,), value)
    wanted = float(grad[0].double()) * math.sqrt(size)
    assert GradientNorm()([grad]) == pytest.approx(wanted, rel=8 * EPS)


def test_norm_of_a_constant_is_wrong_by_more_in_torch() -> None:
    grad = torch.full((1 << 20,), 1.2743719)
    wanted = float(grad[0].double()) * 1024
    assert abs(float(torch.linalg.vector_norm(grad)) - wanted) > 100 * EPS * wanted


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 20_000), min_size=1, max_size=5),
    exponent=st.integers(-45, 38),
    seed=st.integers(0, 100),
)
def test_norm_of_any_magnitude_is_right_to_8_eps(
    sizes: list[int], exponent: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    grads = [torch.rand(size, generator=generator) * 10.0**exponent for size in sizes]
    wanted = exact(grads) if sum(sizes) else 0.0
    assert GradientNorm()(grads) == pytest.approx(wanted, rel=8 * EPS, abs=0.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64])
def test_norm_of_any_dtype_is_right_to_8_eps(dtype: torch.dtype) -> None:
    grads = [torch.randn(3000, dtype=dtype), torch.randn(5)]
    assert GradientNorm()(grads) == pytest.approx(exact(grads), rel=8 * EPS)


def test_norm_of_large_finite_gradients_is_no_false_alarm() -> None:
    # float32 squares overflow above 1.8e19. Oracle: closed form
    assert GradientNorm()([torch.full((4,), 1e30)]) == pytest.approx(2e30, rel=8 * EPS)
    grads = [torch.full((4,), 1e200, dtype=torch.float64)]
    assert GradientNorm()(grads) == pytest.approx(2e200, rel=8 * EPS)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan], ids=str)
@pytest.mark.parametrize("size", [1, 100, 8192, 300_001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_norm_with_one_bad_element_is_not_finite(size: int, bad: float, dtype: torch.dtype) -> None:
    grad = torch.zeros(size, dtype=dtype)
    grad[size // 2] = bad
    norm = GradientNorm()([torch.ones(3), grad])
    assert isinstance(norm, float)
    assert not math.isfinite(norm)


def test_norm_of_sparse_gradients_counts_a_repeated_row_once() -> None:
    # row 1 twice: 1 + 2 = 3 per element. Oracle: closed form
    grad = torch.sparse_coo_tensor(torch.tensor([[1, 1]]), torch.tensor([[1.0], [2.0]]), (3, 1))
    assert GradientNorm()([grad.coalesce()]) == pytest.approx(3.0, rel=EPS)


def test_norm_of_transposed_gradients_is_that_of_their_values() -> None:
    grad = torch.randn(100, 200).t()
    assert GradientNorm()([grad]) == pytest.approx(exact([grad]), rel=8 * EPS)


def test_norm_with_a_kept_buffer_follows_changed_values() -> None:
    key, norm = object(), GradientNorm()
    grads = [torch.ones(4), torch.ones(5)]
    assert norm(grads, key) == pytest.approx(3.0, rel=EPS)
    assert norm([g * 2 for g in grads], key) == pytest.approx(6.0, rel=EPS)
    assert norm(grads[:1], key) == pytest.approx(2.0, rel=EPS)
    assert norm([torch.ones(9), torch.ones(16, 1)], key) == pytest.approx(5.0, rel=EPS)


@pytest.mark.parametrize(
    "shapes",
    [
        [(64,)] * 300,  # one loop of torch.cat
        [(64,), (3, 5), (), (1, 7)] * 20,  # of several dimensions
        [(4096,), (4095,)] * 10,  # beyond one loop
        [(0,), (1,), (8191,), (8192,)],
        [(8191,), (8192,), (9000,)],  # on both sides of what is laid side by side
    ],
)
def test_norm_of_small_gradients_side_by_side_is_right_to_8_eps(
    shapes: list[tuple[int, ...]],
) -> None:
    torch.manual_seed(0)
    norm, key = GradientNorm(), object()
    for _ in range(2):  # the buffer is new, then kept
        grads = [torch.randn(shape) for shape in shapes]
        assert norm(grads, key) == pytest.approx(exact(grads), rel=8 * EPS)


def test_norm_of_gradients_with_a_graph_is_a_plain_number() -> None:
    x = torch.full((4,), 2.0, requires_grad=True)
    assert GradientNorm()([x * 1.0, (x * 1.0).view(2, 2)]) == pytest.approx(math.sqrt(32), rel=EPS)
