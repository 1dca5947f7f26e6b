"""What one rule does to one call: the conditions are those of torch's own autocast."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import halfstep as hs

H = torch.linspace(0.1, 1, 16).reshape(4, 4).half()
F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64


def dtype_of(rule: str, op: str, call: Callable[[], Tensor], format: str = "fp16") -> torch.dtype:
    with hs.Policy(format, ops={op: rule}).autocast("cpu"):
        return call().dtype


@pytest.mark.parametrize(
    ("rule", "half", "full"),
    [
        ("fp32", F32, F32),
        ("low", F16, F16),
        ("fp16", F16, F16),
        ("bf16", BF16, BF16),
        ("promote", F16, F32),
        ("inputs", F16, F32),
    ],
)
@pytest.mark.parametrize(
    ("op", "call"), [("gelu", F.gelu), ("softmax", lambda x: torch.softmax(x, -1))]
)
def test_op_runs_in_what_the_rule_says(
    op: str, call: Callable[[Tensor], Tensor], rule: str, half: torch.dtype, full: torch.dtype
) -> None:
    assert dtype_of(rule, op, lambda: call(H)) is half
    assert dtype_of(rule, op, lambda: call(H.float())) is full


def test_rule_takes_an_op_off_the_devices_list() -> None:
    x = H.float()
    assert dtype_of("fp32", "linear", lambda: F.linear(x, x)) is F32
    assert dtype_of("inputs", "linear", lambda: F.linear(x, x)) is F32
    assert dtype_of("low", "mse_loss", lambda: F.mse_loss(x, x)) is F16
    assert dtype_of("low", "gelu", lambda: F.linear(x, x)) is F16


def test_product_inside_of_an_fp32_op_stays_in_fp32() -> None:
    # linear is made of addmm, which the CPU lists as low; 2049 is no FP16 number
    x = torch.tensor([[2048.0, 1.0]])
    with hs.Policy("fp16", ops={"linear": "fp32"}).autocast("cpu"):
        assert F.linear(x, torch.ones(1, 2)).item() == 2049.0
    with torch.autocast("cpu", F16):
        assert F.linear(x, torch.ones(1, 2)).item() == 2048.0


@pytest.mark.parametrize("rule", ["fp32", "low", "promote", "fp16"])
def test_float64_and_integers_are_not_touched(rule: str) -> None:
    ones = torch.ones(2, 2, dtype=F64)
    assert dtype_of(rule, "mul", lambda: ones * ones) is F64
    assert dtype_of(rule, "exp", lambda: ones.exp()) is F64
    assert dtype_of(rule, "sum", lambda: ones.sum()) is F64
    assert dtype_of(rule, "sum", lambda: torch.arange(3).sum()) is torch.int64
    assert dtype_of(rule, "mul", lambda: torch.arange(3) * 2) is torch.int64


def test_given_dtype_is_honoured() -> None:
    for dtype in (F16, BF16, F64):
        assert dtype_of("fp32", "softmax", lambda d=dtype: torch.softmax(H, -1, dtype=d)) is dtype
        assert dtype_of("fp32", "sum", lambda d=dtype: H.sum(dtype=d)) is dtype
        assert dtype_of("fp32", "cumsum", lambda d=dtype: H.cumsum(0, dtype=d)) is dtype


def test_in_place_and_out_are_not_cast() -> None:
    with hs.Policy("fp16", ops={"exp": "fp32", "mul": "fp32"}).autocast("cpu"):
        h = H.clone()
        assert h.exp_() is h
        h *= 2
        assert h.dtype is F16
        assert torch.exp(H, out=torch.empty(4, 4, dtype=F16)).dtype is F16
        assert H.exp().dtype is F32


def test_list_arguments_and_keywords_are_cast() -> None:
    assert dtype_of("fp32", "stack", lambda: torch.stack([H, H])) is F32
    assert dtype_of("fp32", "layer_norm", lambda: F.layer_norm(H, (4,), weight=H[0])) is F32
    assert dtype_of("low", "addmm", lambda: torch.addmm(H, H, H, beta=2)) is F16


@pytest.mark.parametrize("op", ["mul", "add", "sub", "div", "pow", "remainder"])
def test_numbers_are_no_tensors_to_cast(op: str) -> None:
    call = getattr(torch, op)
    assert dtype_of("fp32", op, lambda: call(H, 0.5)) is F32
    assert dtype_of("promote", op, lambda: call(H, 0.5)) is F16
    assert dtype_of("inputs", op, lambda: call(H, 0.5)) is F16


def test_one_overload_can_be_named() -> None:
    policy = hs.Policy("fp16", ops={"pow.Tensor_Scalar": "fp32", "aten::sum.default": "fp32"})
    with policy.autocast("cpu"):
        assert [(H**2).dtype, (H**H).dtype, H.sum().dtype, H.sum(0).dtype] == [F32, F16, F32, F16]


def test_python_name_stands_for_what_it_arrives_at() -> None:
    assert dtype_of("low", "cross_entropy", lambda: F.cross_entropy(H, torch.arange(4))) is F16
    assert dtype_of("fp32", "norm", lambda: H.norm()) is F32
    assert dtype_of("fp32", "multiply", lambda: torch.multiply(H, H)) is F32


def test_format_of_the_rule_follows_a_nested_autocast() -> None:
    with hs.Policy("fp16", ops={"gelu": "low"}).autocast("cpu"), torch.autocast("cpu", BF16):
        assert F.gelu(H.float()).dtype is BF16


def test_rules_of_several_models_begin_with_their_names() -> None:
    models = {"generator": torch.nn.Linear(4, 4), "critic": torch.nn.Linear(4, 1)}
    optimizers = {n: torch.optim.SGD(m.parameters(), lr=0.1) for n, m in models.items()}
    policy = hs.Policy("fp16", modules={"critic": "fp32"})
    engine = hs.Engine(models, optimizers, precision=policy)
    with engine.autocast():
        assert models["generator"](H.float()).dtype is F16
        assert models["critic"](H.float()).dtype is F32


@pytest.mark.parametrize("format", ["bf16", "fp16"])
def test_cross_entropy_of_a_sure_prediction_is_as_near_as_rounding(format: str) -> None:
    # oracle: float64 of the same 16-bit logits; a CPU's own 16-bit log_softmax is off by half
    policy = hs.Policy(format, base="cuda")
    logits = torch.tensor([[6.0, 0.0, 0.0], [0.0, 7.0, 0.0]]).to(policy.row.dtype)
    logits.requires_grad_()
    targets = torch.tensor([0, 1])
    with policy.autocast("cpu"):
        loss = F.cross_entropy(logits, targets)
    loss.backward()
    exact = logits.detach().double().requires_grad_()
    reference = F.cross_entropy(exact, targets)
    reference.backward()
    expected = reference.detach().item()
    assert loss.detach().item() == pytest.approx(expected, rel=2 * policy.row.eps)
    assert logits.grad is not None
    assert exact.grad is not None
    gap = (logits.grad.double() - exact.grad).norm() / exact.grad.norm()
    assert float(gap) < 2 * policy.row.eps
