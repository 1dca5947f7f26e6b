"""CUDA's policy on the CPU against CUDA itself, and rules on CUDA's own autocast key."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import halfstep as hs

sys.path.insert(0, str(Path(__file__).parents[1] / "precision"))
import documented_ops

pytestmark = pytest.mark.gpu
FORMATS = {"fp16": torch.float16, "bf16": torch.bfloat16}


def result_on(device: str, name: str, arrives_in: torch.dtype, format: str) -> torch.dtype:
    x = torch.linspace(0.1, 0.9, 16).reshape(4, 4).to(device, arrives_in)
    if device == "cuda":
        torch.set_default_device("cuda")  # cells and convolutions make their weights themselves
    try:
        context = (
            torch.autocast("cuda", FORMATS[format])
            if device == "cuda"
            else hs.Policy(format, base="cuda").autocast("cpu")
        )
        with context:
            found: Tensor = documented_ops.CALLS[name](x)
        return found.dtype
    finally:
        torch.set_default_device(None)


CONVOLUTIONS = [n for n in documented_ops.CALLS if n.startswith("conv")]


@pytest.mark.real_device(shows="CUDA obeys the list that a policy brings to the CPU")
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", [n for n in documented_ops.CALLS if n not in CONVOLUTIONS])
def test_cpu_runs_an_op_in_the_dtype_that_cuda_gives(name: str, format: str) -> None:
    for arrives_in in (torch.float32, FORMATS[format]):
        on_cpu = result_on("cpu", name, arrives_in, format)
        with pytest.MonkeyPatch.context() as patch:
            for operand in ("CUBE", "MATRIX", "VECTOR", "LABELS", "SIGNS"):
                patch.setattr(documented_ops, operand, getattr(documented_ops, operand).cuda())
            assert result_on("cuda", name, arrives_in, format) is on_cpu, arrives_in


@pytest.mark.real_device(shows="recurrent nets run in cuDNN")
@pytest.mark.parametrize("make", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_net_has_the_dtype_of_cudnn(make: type[nn.RNNBase]) -> None:
    net, x = make(4, 4), torch.randn(3, 2, 4)
    with hs.Policy("fp16", base="cuda").autocast("cpu"):
        on_cpu = net(x)[0].dtype
    with torch.autocast("cuda", torch.float16):
        assert net.cuda()(x.cuda())[0].dtype is on_cpu


def test_binary_cross_entropy_is_refused_by_both() -> None:
    x = torch.rand(4)
    with torch.autocast("cuda"), pytest.raises(RuntimeError, match="unsafe to autocast"):
        F.binary_cross_entropy(x.cuda(), x.cuda())


def test_rules_act_on_cuda_and_end_with_the_policy() -> None:
    h = torch.ones(2, 4, device="cuda").half()
    policy = hs.Policy("fp16", ops={"gelu": "fp32", "softmax": "low"})
    with policy.autocast("cuda"):
        assert F.gelu(h).dtype is torch.float32
        assert torch.softmax(h, -1).dtype is torch.float16
    with torch.autocast("cuda", torch.float16):
        assert F.gelu(h).dtype is torch.float16
        assert torch.softmax(h, -1).dtype is torch.float32


def test_base_cuda_on_cuda_is_torchs_own_list() -> None:
    h = torch.linspace(-1, 1, 16, device="cuda").reshape(4, 4).half()
    with hs.Policy("fp16", base="cuda").autocast("cuda"):
        found = torch.softmax(h, -1), h.sum(), h @ h
    with torch.autocast("cuda", torch.float16):
        expected = torch.softmax(h, -1), h.sum(), h @ h
    for a, b in zip(found, expected, strict=True):
        assert a.dtype is b.dtype
        assert torch.equal(a, b)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoint_recomputes_under_the_policy_in_autograds_threads(use_reentrant: bool) -> None:
    policy = hs.Policy("fp16", ops={"gelu": "fp32", "softmax": "low"}, modules={"0": "fp32"})

    def gradients(checkpointed: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8), nn.Softmax(-1)).cuda()
        policy.attach(model)
        x = torch.linspace(-2, 2, 32, device="cuda").reshape(4, 8).requires_grad_()
        with policy.autocast("cuda"):
            y = (
                checkpoint(model, x, use_reentrant=use_reentrant)  # type: ignore[no-untyped-call]
                if checkpointed
                else model(x)
            )
        with policy.recompute("cuda"):
            y.float().square().sum().backward()
        return [t.grad for t in (*model.parameters(), x) if t.grad is not None]

    assert all(map(torch.equal, gradients(True), gradients(False)))
