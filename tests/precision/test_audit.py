"""`Policy.audit`: what a policy cannot reach is named, with file, line and remedy."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import halfstep as hs
from halfstep.precision import AuditEntry

HERE = str(Path(__file__))
CUDA = hs.Policy("fp16", base="cuda")


@pytest.fixture(scope="module", autouse=True)
def _custom_ops() -> None:
    for name in ("plain", "ruled", "edited"):
        op = torch.library.custom_op(f"halfstep_tests::{name}", _double, mutates_args=())
        op.register_autograd(lambda ctx, grad: grad * 2)
        if name == "ruled":
            op.register_autocast("cpu", torch.float32)


def _double(x: Tensor) -> Tensor:
    return x * 2


class Undecorated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> Tensor:
        return grad[0]


class Decorated(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, *grad: Tensor) -> Tensor:
        return grad[0]


class Model(nn.Module):
    def __init__(self, *steps: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.steps = steps

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        x = self.linear(x)
        for step in self.steps:
            x = step(x)
        return x


def only(model: nn.Module, batch: Any = None, policy: hs.Policy = CUDA) -> AuditEntry:
    (entry,) = policy.audit(model, torch.ones(2, 4) if batch is None else batch).entries
    assert entry.remedy
    return entry


def line_of(text: str) -> int:
    lines = Path(HERE).read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if line.strip().startswith(text))


def test_model_in_order_has_no_entries() -> None:
    audit = CUDA.audit(Model(F.relu, Decorated.apply), torch.ones(2, 4))
    assert audit.entries == ()
    assert str(audit) == "nothing that the policy cannot reach"


def test_custom_op_without_a_rule_is_named_with_the_calling_line() -> None:
    entry = only(Model(lambda x: torch.ops.halfstep_tests.plain(x), torch.ops.halfstep_tests.ruled))
    assert (entry.kind, entry.name) == ("custom_op", "halfstep_tests::plain")
    assert entry.path == HERE
    assert entry.line == line_of("entry = only(Model(lambda x: torch.ops.halfstep_tests.plain")
    assert str(entry).startswith(f"{HERE}:{entry.line}: custom op halfstep_tests::plain has no")


def test_custom_op_called_often_is_one_entry() -> None:
    def twice(x: Tensor) -> Tensor:
        for _ in range(2):
            x = torch.ops.halfstep_tests.plain(x)
        return x

    assert only(Model(twice)).count == 2


def test_custom_op_that_the_policy_names_is_ruled() -> None:
    edited = hs.Policy("fp16", ops={"halfstep_tests::edited": "fp32"})
    op = torch.ops.halfstep_tests.edited
    assert edited.audit(Model(op), torch.ones(2, 4)).entries == ()
    half = torch.ones(2).half()
    with edited.autocast("cpu"):
        assert op(half).dtype is torch.float32
    with torch.autocast("cpu", torch.float16):
        assert op(half).dtype is torch.float16


def test_function_without_decorators_is_named_with_its_class() -> None:
    entry = only(Model(Undecorated.apply, Decorated.apply, Undecorated.apply))
    assert (entry.kind, entry.name, entry.count) == ("function", "Undecorated", 2)
    assert (entry.path, entry.line) == (HERE, inspect.getsourcelines(Undecorated)[1])
    assert "no custom_fwd and no custom_bwd" in entry.message
    assert "torch.amp.custom_fwd(device_type='cpu')" in entry.remedy


def test_half_parameter_is_named_with_the_class_that_owns_it() -> None:
    model = nn.Sequential(Model(), nn.Linear(4, 4))
    model[0].register_buffer("scale", torch.ones(1).bfloat16())
    model[1].half()
    entries = hs.Policy("fp16").audit(model, torch.ones(2, 4)).entries
    assert [(e.kind, e.name) for e in entries] == [
        ("half_parameter", "1.weight"),
        ("half_parameter", "1.bias"),
        ("half_parameter", "0.scale"),
    ]
    assert entries[0].line == line_of("entries = hs.Policy")  # no class of the user around it
    assert entries[2].line == inspect.getsourcelines(Model)[1]
    assert "parameter '1.weight' is FP16" in entries[0].message
    assert "buffer '0.scale' is BF16" in entries[2].message


@pytest.mark.parametrize(
    ("batch", "name"),
    [
        (torch.ones(2, 4).half(), "input"),
        ((torch.ones(2, 4), torch.ones(2, 4).half()), "input[1]"),
        ({"x": torch.ones(2, 4).half(), "scale": None}, "input['x']"),
    ],
)
def test_half_input_is_named_with_the_asking_line(batch: Any, name: str) -> None:
    entry = only(Model(), batch)
    assert (entry.kind, entry.name, entry.path) == ("half_input", name, HERE)


def test_island_that_is_passed_by_is_named() -> None:
    # attention reads the weights of its output layer, it does not call it
    model = nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True))
    policy = hs.Policy("fp16", modules={"*.out_proj": "fp32", "*.norm1": "fp32"})
    entry = only(model, torch.ones(1, 3, 4), policy)
    assert (entry.kind, entry.name) == ("island_not_called", "0.self_attn.out_proj")


def test_torchs_own_ops_in_16_bits_are_counted() -> None:
    audit = CUDA.audit(Model(F.gelu, F.gelu, F.silu, torch.exp), torch.ones(2, 4))
    assert dict(audit.ops_without_rule) == {"gelu": 2, "silu": 1}


def test_audit_leaves_model_and_generators_as_they_were() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout())
    before = [b.clone() for b in model.buffers()], torch.get_rng_state()
    CUDA.audit(model, torch.randn(3, 4, generator=torch.Generator().manual_seed(0)))
    assert all(map(torch.equal, before[0], model.buffers()))
    assert torch.equal(before[1], torch.get_rng_state())
    assert all(p.grad is None for p in model.parameters())
    assert not model[0]._forward_pre_hooks
