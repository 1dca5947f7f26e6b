"""``with fp32():``, the block form of an island."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import halfstep as hs

H = torch.linspace(0.1, 1, 16).reshape(4, 4).half()
COMPUTES: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda h: torch.softmax(h, -1),
    "method": lambda h: h.softmax(-1),
    "functional": lambda h: F.softmax(h, -1),
    "operator": lambda h: h * h + 1,
    "reflected": lambda h: 2.0**h,
    "matmul": lambda h: h @ h,
    "sum": lambda h: h.sum(),
    "list": lambda h: torch.cat([h, h]),
    "keyword": lambda h: torch.softmax(input=h, dim=-1),
    "module": nn.Softmax(-1),
    "weights": nn.Linear(4, 4),
    "view, then op": lambda h: h.view(2, 8)[0].exp(),
    "einsum": lambda h: torch.einsum("ij,ij->i", h, h),
}


@pytest.mark.parametrize("name", COMPUTES)
def test_everything_that_computes_runs_in_fp32(name: str) -> None:
    # oracle: the op on values that were cast by hand, outside of autocast
    call = COMPUTES[name]
    with torch.autocast("cpu", torch.float16), hs.fp32():
        found = call(H)
    assert found.dtype is torch.float32
    assert torch.equal(found, call(H.float()))


def test_gradient_goes_back_to_the_half_input() -> None:
    h = H.clone().requires_grad_()
    with torch.autocast("cpu", torch.float16), hs.fp32():
        torch.softmax(h, -1).square().sum().backward()
    by_hand = H.clone().requires_grad_()
    torch.softmax(by_hand.float(), -1).square().sum().backward()
    assert h.grad is not None
    assert by_hand.grad is not None
    assert torch.equal(h.grad, by_hand.grad)


def test_attributes_conversions_and_writing_are_left_alone() -> None:
    h = H.clone()
    with hs.fp32():
        assert h.dtype is torch.float16
        assert h.is_floating_point()
        assert h.element_size() == 2
        assert h.half() is h
        assert h.bfloat16().dtype is torch.bfloat16
        assert h.double().exp().dtype is torch.float64
        assert torch.arange(3).sum().dtype is torch.int64
        h.add_(1)
        h += 1
        h[0] = 7
        h.view(-1)[15] = 9
        torch.exp(H, out=(out := torch.empty(4, 4).half()))
    assert h.dtype is torch.float16
    assert (h[0, 0], h[3, 3]) == (7, 9)
    assert torch.equal(h[1:3], (H[1:3] + 1) + 1)
    assert torch.equal(out, H.exp())


def test_block_ends_with_the_block_after_an_exception_too() -> None:
    with torch.autocast("cpu", torch.float16):
        for error in (ValueError, KeyboardInterrupt):
            with pytest.raises(error), hs.fp32(), hs.fp32():
                raise error
            assert torch.is_autocast_enabled("cpu")
            assert torch.softmax(H, -1).dtype is torch.float16


def test_block_can_be_entered_again_and_nested() -> None:
    block = hs.fp32()
    for _ in range(2):
        with block, block:
            assert torch.softmax(H, -1).dtype is torch.float32
        assert torch.softmax(H, -1).dtype is torch.float16


def test_block_decorates_a_function() -> None:
    @hs.fp32()
    def stable(h: Tensor) -> Tensor:
        return torch.softmax(h, -1)

    with hs.Policy("fp16").autocast("cpu"):
        assert stable(H).dtype is torch.float32
        assert torch.softmax(H, -1).dtype is torch.float16


def test_switching_autocast_off_alone_would_stay_in_fp16() -> None:
    # what the block is for
    with torch.autocast("cpu", torch.float16), torch.autocast("cpu", enabled=False):
        assert torch.softmax(H, -1).dtype is torch.float16
