"""CUDA's policy on a CPU. The oracles: torch's documentation, and the lists of its own tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from documented_ops import CALLS, PROMOTING, TO_FLOAT16, TO_FLOAT32, TO_WIDEST
from torch import Tensor, nn
from torch.testing._internal.autocast_test_lists import AutocastTestLists
from torch.utils import _pytree as pytree

import halfstep as hs

FORMATS = {"fp16": torch.float16, "bf16": torch.bfloat16}
# group of torch's test lists -> expected dtype (None: in the case itself), namespaces to call
GROUPS: dict[str, tuple[torch.dtype | None, tuple[Any, ...]]] = {
    "torch_fp16": (torch.float16, (torch,)),
    "torch_fp32": (torch.float32, (torch,)),
    "torch_need_autocast_promote": (torch.float32, (torch,)),
    "torch_expect_builtin_promote": (None, (torch,)),
    "methods_expect_builtin_promote": (None, ()),
    "nn_fp16": (torch.float16, (torch._C._nn,)),
    "nn_fp32": (torch.float32, (torch._C._nn,)),
    "linalg_fp16": (torch.float16, (torch._C._linalg,)),
    "methods_fp16": (torch.float16, ()),
    "methods_fp32": (torch.float32, ()),
}
# no CPU kernel; and a case in torch's list that cannot be called (4 letters for 2 dimensions)
LEFT_OUT = {"cudnn_convolution", "cudnn_convolution_transpose", "einsum"}


def cuda(format: str = "fp16", **rest: Any) -> hs.Policy:
    return hs.Policy(format, base="cuda", **rest)


def test_tables_of_the_documentation_are_called_completely() -> None:
    assert set(CALLS) == {*TO_FLOAT16, *TO_FLOAT32}
    assert set(PROMOTING) == set(TO_WIDEST)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", [*TO_FLOAT16, *TO_FLOAT32])
@pytest.mark.parametrize("arrives_in", ["float32", "low"])
def test_documented_op_runs_in_the_dtype_of_cuda(name: str, format: str, arrives_in: str) -> None:
    low = FORMATS[format]
    x = (torch.rand(4, 4) * 0.8 + 0.1).to(low if arrives_in == "low" else torch.float32)
    leaf = x.clone().requires_grad_()
    with cuda(format).autocast("cpu"):
        result = CALLS[name](leaf)
    # normalize divides by an FP32 norm, so that FP16 inputs come out in FP32 there as well
    assert result.dtype is (low if name in TO_FLOAT16 else torch.float32)
    result.float().sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.dtype is leaf.dtype


@pytest.mark.parametrize("name", TO_WIDEST)
def test_documented_op_promotes_to_the_widest(name: str) -> None:
    half, full = torch.float16, torch.float32
    with cuda().autocast("cpu"):
        found = [PROMOTING[name](a, b).dtype for a in (half, full) for b in (half, full)]
    assert found == [half, full, full, full]


def cases() -> Iterator[Any]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = AutocastTestLists("cpu")
    for group, (expected, homes) in GROUPS.items():
        for number, (name, args, *rest) in enumerate(getattr(made, group)):
            if name in LEFT_OUT:
                continue
            keywords: dict[str, Any] = rest[0] if rest and isinstance(rest[0], dict) else {}
            dtype = expected or rest[0]
            calls = [getattr(home, name) for home in homes if hasattr(home, name)]
            if hasattr(torch.Tensor, name) and isinstance(args[0], Tensor):
                calls.append(getattr(torch.Tensor, name))
            for call in calls:
                way = "method" if call is getattr(torch.Tensor, name, None) else "function"
                yield pytest.param(call, args, keywords, dtype, id=f"{group}-{name}-{number}-{way}")


@pytest.mark.filterwarnings("ignore:.*(chain_matmul|torch.cross).*:UserWarning")
@pytest.mark.parametrize(("call", "args", "keywords", "dtype"), list(cases()))
def test_op_of_torchs_own_list_is_bit_equal_to_casting_by_hand(
    call: Callable[..., Any], args: Any, keywords: dict[str, Any], dtype: torch.dtype
) -> None:
    """As in torch's own test of CUDA's autocast, and the gradients too."""

    def run(cast_to: torch.dtype | None) -> tuple[list[Any], list[Tensor | None]]:
        leaves, structure = pytree.tree_flatten(args)
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor) and leaf.is_floating_point():
                leaves[i] = leaf.detach().clone().requires_grad_()
        inputs = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if cast_to is not None:
            leaves = [
                leaf.to(cast_to) if isinstance(leaf, Tensor) and leaf.requires_grad else leaf
                for leaf in leaves
            ]
        result = call(*pytree.tree_unflatten(leaves, structure), **keywords)
        outputs = [t for t in pytree.tree_leaves(result) if isinstance(t, Tensor)]
        # backward comes after autocast, so it is collected here and run outside
        return outputs, inputs

    with cuda().autocast("cpu"):
        outputs, inputs = run(None)
    if dtype is torch.bool or not outputs:
        return
    assert {t.dtype for t in outputs} == {dtype}
    expected, expected_inputs = run(dtype)
    for found, by_hand in zip(outputs, expected, strict=True):
        assert torch.equal(found, by_hand)
    for these in (outputs, expected):
        if all(t.requires_grad for t in these):
            torch.autograd.backward(these, [torch.ones_like(t) for t in these])
    for found_in, by_hand_in in zip(inputs, expected_inputs, strict=True):
        assert (found_in.grad is None) == (by_hand_in.grad is None)
        if found_in.grad is not None and by_hand_in.grad is not None:
            assert found_in.grad.dtype is found_in.dtype
            assert torch.equal(found_in.grad, by_hand_in.grad)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_binary_cross_entropy_is_refused_with_the_advice(dtype: torch.dtype) -> None:
    x = torch.rand(4, dtype=dtype)
    with (
        cuda().autocast("cpu"),
        pytest.raises(RuntimeError, match="binary_cross_entropy_with_logits"),
    ):
        F.binary_cross_entropy(x, x)
    with cuda().autocast("cpu"), hs.fp32():
        assert F.binary_cross_entropy(x, x).dtype is torch.float32


def test_promotion_of_two_16_bit_formats_is_refused_as_on_cuda() -> None:
    x = torch.ones(4)
    with cuda().autocast("cpu"), pytest.raises(hs.RefusedOpError, match="no widest of two 16-bit"):
        torch.dot(x.half(), x.bfloat16())


@pytest.mark.parametrize("make", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("format", FORMATS)
def test_recurrent_net_gives_the_low_format_as_cudnn_does(make: Any, format: str) -> None:
    # oracle: the same net in FP32, within a few roundings of the format
    net, x = make(4, 4, num_layers=2, bidirectional=True), torch.randn(3, 2, 4)
    with cuda(format).autocast("cpu"):
        output = net(x)[0]
    assert output.dtype is FORMATS[format]
    eps = torch.finfo(FORMATS[format]).eps
    assert torch.allclose(output.float(), net(x)[0], atol=16 * eps)
    output.float().sum().backward()
    assert all(p.grad is not None and p.grad.dtype is torch.float32 for p in net.parameters())


def test_op_that_only_the_cpu_lists_runs_as_its_inputs_come() -> None:
    x = torch.randn(1, 1, 4, 4, 4).half()
    with cuda().autocast("cpu"):
        assert F.max_pool3d(x, 2).dtype is torch.float16
        assert F.avg_pool3d(x, 2).dtype is torch.float16  # no CPU kernel: computed in FP32
        assert torch.cat([x, x.float()]).dtype is torch.float32
    with torch.autocast("cpu", torch.float16):
        assert F.max_pool3d(x, 2).dtype is torch.float32


def test_linear_algebra_refuses_fp16_as_on_cuda() -> None:
    with (
        cuda().autocast("cpu"),
        pytest.raises(RuntimeError, match="Low precision dtypes not supported"),
    ):
        torch.linalg.inv(torch.eye(3).half())


@pytest.mark.parametrize("equation", ["ij,jk->ik", "i...,i...->i...", "ij->"])
def test_einsum_runs_in_the_low_format(equation: str) -> None:
    operands = [torch.rand(3, 3) for _ in range(equation.count(",") + 1)]
    with cuda().autocast("cpu"):
        found = torch.einsum(equation, *operands)
    assert torch.equal(found, torch.einsum(equation, *(t.half() for t in operands)))


def test_composite_op_in_fp32_stays_in_fp32_within() -> None:
    # cdist of many points multiplies matrices; in FP16 these distances are off by more than 1
    x = torch.arange(64.0)[:, None].half() * 16
    with cuda().autocast("cpu"):
        found = torch.cdist(x, x)
    assert torch.equal(found, (x.float() - x.float().T).abs())
