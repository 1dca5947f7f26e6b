"""Where a policy acts and, above all, where it does not: outside it every bit is torch's."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import every_op
import pytest
import stock_ops
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from stock_ops import X, all_results, results
from torch import Tensor, nn

import halfstep as hs

CUDA = hs.Policy("fp16", base="cuda", ops={"gelu": "fp32", "mul": "promote"})


def same(found: list[Tensor], expected: list[Tensor]) -> bool:
    return all(
        a.dtype is b.dtype and torch.equal(a, b) for a, b in zip(found, expected, strict=True)
    )


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> list[list[Tensor]]:
    """What a process that never heard of halfstep computes: FP32, FP16, FP16 under autocast."""
    path = tmp_path_factory.mktemp("stock") / "results.pt"
    subprocess.run([sys.executable, stock_ops.__file__, path], check=True)
    found: list[list[Tensor]] = torch.load(path)
    return found


def is_stock(stock: list[list[Tensor]]) -> bool:
    return all(map(same, all_results(), stock))


def test_before_and_after_a_policy_every_bit_is_torchs(stock: list[list[Tensor]]) -> None:
    with CUDA.autocast("cpu"):
        assert not same(results(), stock[3])
    assert is_stock(stock)


def test_after_an_exception_every_bit_is_torchs(stock: list[list[Tensor]]) -> None:
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error), CUDA.autocast("cpu"), CUDA.autocast("cpu"):
            raise error
        assert is_stock(stock)
    with pytest.raises(RuntimeError), CUDA.autocast("cpu"):
        F.binary_cross_entropy(X.sigmoid(), X.sigmoid())
    assert is_stock(stock)


def test_other_threads_compute_torchs_bits_while_a_policy_is_active(
    stock: list[list[Tensor]],
) -> None:
    with ThreadPoolExecutor(4) as pool, CUDA.autocast("cpu"):
        futures = [pool.submit(is_stock, stock) for _ in range(8)]
        assert not same(results(), stock[3])
        assert all(future.result() for future in futures)


def test_two_threads_with_two_policies_each_get_their_own() -> None:
    policies = [
        hs.Policy("fp16", ops={"softmax": "fp32"}),
        hs.Policy("bf16", ops={"exp": "fp32"}),
    ]
    meet = threading.Barrier(2)

    def run(policy: hs.Policy) -> tuple[torch.dtype, ...]:
        h = X.to(policy.row.dtype)
        with policy.autocast("cpu"):
            meet.wait()
            found = (h @ h).dtype, torch.softmax(h, -1).dtype, h.exp().dtype
            meet.wait()
        return found

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(run, policies))
    assert found == [
        (torch.float16, torch.float32, torch.float16),
        (torch.bfloat16, torch.bfloat16, torch.float32),
    ]


def test_stock_autocast_inside_changes_the_format_and_keeps_the_rules() -> None:
    with CUDA.autocast("cpu"):
        with torch.autocast("cpu", torch.bfloat16):
            assert (X @ X).dtype is torch.bfloat16
            assert torch.softmax(X.bfloat16(), -1).dtype is torch.float32
        assert (X @ X).dtype is torch.float16


def test_stock_autocast_disabled_inside_is_torchs(stock: list[list[Tensor]]) -> None:
    with CUDA.autocast("cpu"):
        with torch.autocast("cpu", enabled=False):
            assert same(results(torch.float32), stock[0])
            assert same(results(), stock[1])
        assert torch.softmax(X.half(), -1).dtype is torch.float32


def test_policy_inside_stock_autocast_gives_it_back(stock: list[list[Tensor]]) -> None:
    with torch.autocast("cpu", torch.float16):
        with CUDA.autocast("cpu"):
            assert torch.softmax(X.half(), -1).dtype is torch.float32
        assert same(results(), stock[3])


def test_policy_without_rules_is_torchs(stock: list[list[Tensor]]) -> None:
    with hs.Policy("fp16").autocast("cpu"):
        assert same(results(torch.float32), stock[2])
        assert same(results(), stock[3])
    with hs.Policy("fp32", base="cuda").autocast("cpu"):
        assert same(results(torch.float32), stock[0])


def test_inner_policy_replaces_the_outer_one(stock: list[list[Tensor]]) -> None:
    with CUDA.autocast("cpu"):
        with hs.Policy("fp16").autocast("cpu"):
            assert same(results(), stock[3])
        with hs.Policy("fp32").autocast("cpu"):
            assert same(results(), stock[1])
        assert torch.softmax(X.half(), -1).dtype is torch.float32


SETTINGS: dict[str, Callable[[], object]] = {
    "cuda": lambda: CUDA.autocast("cpu"),
    "one context": lambda: ONE,
    "plain": lambda: hs.Policy("bf16").autocast("cpu"),
    "fp32": lambda: hs.Policy("fp32").autocast("cpu"),
    "backward": lambda: CUDA.recompute("cpu"),
    "stock": lambda: torch.autocast("cpu", torch.float16),
    "stock off": lambda: torch.autocast("cpu", enabled=False),
    "block": hs.fp32,
}
ONE = hs.Policy("fp16", ops={"softmax": "fp32"}).autocast("cpu")


def state() -> tuple[object, ...]:
    h = X.half()
    return (
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_cache_enabled(),
        torch.softmax(h, -1).dtype,
        F.gelu(h).dtype,
    )


@settings(deadline=None)  # the first examples register kernels
@given(st.lists(st.sampled_from(sorted(SETTINGS)), max_size=6), st.booleans())
def test_any_nesting_gives_back_what_was_there(names: list[str], fails: bool) -> None:
    def enter(rest: list[str]) -> None:
        before = state()
        if not rest:
            if fails:
                raise ValueError
            return
        try:
            with SETTINGS[rest[0]]():  # type: ignore[attr-defined]
                enter(rest[1:])
        finally:
            assert state() == before

    try:
        enter(names)
    except ValueError:
        assert fails
    assert torch.autocast_increment_nesting() == 1  # none was left open
    torch.autocast_decrement_nesting()


def test_context_decorates_a_function() -> None:
    @CUDA.autocast("cpu")
    def run(depth: int) -> torch.dtype:
        return run(depth - 1) if depth else torch.softmax(X.half(), -1).dtype

    assert run(2) is torch.float32
    assert torch.softmax(X.half(), -1).dtype is torch.float16


def test_weights_are_cast_again_after_an_update_inside_one_context() -> None:
    # in stock autocast the first weights stay in use; these are the ops with casts of ours
    weight = nn.Parameter(torch.ones(8))
    with CUDA.autocast("cpu"):
        first = torch.mv(X, weight)
        with torch.no_grad():
            weight.mul_(2)
        assert torch.equal(torch.mv(X, weight), first * 2)


def test_weight_that_is_used_twice_is_cast_once() -> None:
    # oracle: on CUDA the gradients of one cast are summed in FP16, where 2048 + 1 is 2048
    weight = nn.Parameter(torch.ones(1))
    with CUDA.autocast("cpu"):
        outputs = [torch.mv(torch.tensor([[v]]), weight) for v in (2048.0, 1.0)]
    torch.autograd.backward(outputs)
    assert weight.grad is not None
    assert weight.grad.item() == 2048.0


def test_casts_do_not_outlive_the_context() -> None:
    weight = nn.Parameter(torch.ones(8))
    for _ in range(2):
        with CUDA.autocast("cpu"):
            y = torch.mv(X, weight)
        y.sum().backward()  # a kept cast would raise: its graph is freed
    with torch.no_grad(), CUDA.autocast("cpu"):
        assert not torch.mv(X, weight).requires_grad
    with CUDA.autocast("cpu"):
        with torch.no_grad():
            torch.mv(X, weight)
        assert torch.mv(X, weight).requires_grad


def test_backward_sees_the_policy_in_the_threads_of_autograd() -> None:
    # as on a GPU, where autograd runs backward in threads of its own
    seen: list[object] = []

    class Look(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, *grad: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.float16):
                seen.append(torch.softmax(X.half(), -1).dtype)
            return grad[0]

    x = torch.ones(1, requires_grad=True)
    y = Look.apply(x)
    with CUDA.recompute("cpu"):
        y.backward()
    Look.apply(x).backward()
    assert seen == [torch.float32, torch.float16]


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    assert not torch.is_autocast_enabled("cpu")
    assert torch.softmax(X.half(), -1).dtype is torch.float16


def test_kernels_on_every_op_of_torch_change_nothing() -> None:
    # more than a thousand ops, numbers in the place of tensors, mixed dtypes, in place, out=
    output = subprocess.run(
        [sys.executable, every_op.__file__], check=True, capture_output=True, text=True
    ).stdout
    under_autocast, plain, failing_when_active, count = output.splitlines()
    assert (under_autocast, plain, failing_when_active) == ("[]", "[]", "[]")
    assert int(count) > 1000
