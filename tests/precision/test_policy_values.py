"""`Policy` as a value: what it refuses, how it compares, copies and prints."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import halfstep as hs
from halfstep.precision.policy import Policy


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"format": "float16"}, r"got 'float16'; did you mean 'fp16'\?"),
        ({"format": "fp16", "base": "cudda"}, r"got 'cudda'; did you mean 'cuda'\?"),
        ({"format": "fp16", "ops": {"sofmax": "fp32"}}, "no op 'sofmax'; did you mean 'softmax'"),
        ({"format": "fp16", "ops": {"softmax.itn": "fp32"}}, "did you mean 'softmax.int'"),
        ({"format": "fp16", "ops": {"no::such": "fp32"}}, "torch has no op 'no::such'"),
        ({"format": "fp16", "ops": {"relu_": "fp32"}}, "works in place.*did you mean 'relu'"),
        ({"format": "fp16", "ops": {"softmax": "float32"}}, "rule for op 'softmax' must be one of"),
        ({"format": "fp16", "ops": {"softmax": "fp23"}}, r"got 'fp23'; did you mean 'fp32'\?"),
        (
            {"format": "fp16", "ops": {"softmax": "fp32", "F.softmax": "low"}},
            r"two rules for one op: 'softmax' and 'F\.softmax' both stand for 'softmax\.int'",
        ),
        (
            {"format": "fp16", "ops": {"norm": "fp32", "linalg_vector_norm": "fp32"}},
            "two rules for one op",
        ),
        ({"format": "fp16", "modules": {"head": "bf16"}}, "modules 'head' must be 'fp32'"),
        ({"format": "fp16", "init_scale": 0.0}, "init_scale must be > 0 and finite, got 0.0"),
        ({"format": "fp16", "init_scale": float("inf")}, "init_scale must be > 0 and finite"),
    ],
)
def test_bad_value_is_one_sentence_with_the_nearest_name(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(hs.BadValueError, match=message):
        hs.Policy(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ops": ["softmax"]}, "ops must be a mapping of op to rule, got list"),
        ({"modules": ["head"]}, "modules must be a mapping of pattern to 'fp32', got list"),
        ({"init_scale": "1024"}, "init_scale must be a number, got str"),
    ],
)
def test_bad_type_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(hs.BadTypeError, match=message):
        hs.Policy("fp16", **arguments)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))


def test_pattern_that_matches_no_module_names_the_nearest() -> None:
    net = nn.ModuleDict({"encoder": nn.Linear(4, 4), "head": nn.Linear(4, 4)})
    policy = hs.Policy("fp16", modules={"encodr": "fp32"})
    with pytest.raises(
        hs.BadValueError,
        match=r"'encodr' matches no module of ModuleDict; did you mean 'encoder'\?",
    ):
        policy.attach(net)
    assert not net["encoder"]._forward_hooks


def test_pattern_for_half_weights_is_refused() -> None:
    with pytest.raises(hs.BadValueError, match=r"'0\.weight' is torch.float16; its"):
        hs.Policy("fp16", modules={"0": "fp32"}).attach(model().half())


def test_attach_to_something_else_is_refused() -> None:
    with pytest.raises(hs.BadTypeError, match=r"model must be a torch.nn.Module, got list"):
        hs.Policy("fp16", modules={"0": "fp32"}).attach([])  # type: ignore[arg-type]


def test_patterns_without_a_model_are_a_wrong_order() -> None:
    policy = hs.Policy("fp16", modules={"never attached": "fp32"})
    with pytest.raises(hs.CallOrderError, match="islands of never attached, but of no model yet"):
        policy.autocast("cpu")


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("cdua", r"no autocast for device 'cdua'; did you mean 'cuda'\?"),
        ("meta", r"no autocast for device 'meta'"),
    ],
)
def test_device_without_autocast_is_refused(device: str, message: str) -> None:
    with pytest.raises(hs.BadValueError, match=message):
        hs.Policy("fp16").autocast(device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for CUDA where there is none")
def test_cuda_without_a_cuda_device_names_the_way_on_a_cpu() -> None:
    with pytest.raises(hs.BadValueError, match=r"base='cuda'\).autocast\('cpu'\) runs CUDA's"):
        hs.Policy("fp16").autocast("cuda")


FULL = Policy("fp16", "cuda", {"gelu": "fp32"}, {"1": "fp32"}, 1024.0, "tuned")


@pytest.mark.parametrize(
    "copied",
    [
        copy.copy(FULL),
        copy.deepcopy(FULL),
        pickle.loads(pickle.dumps(FULL)),
        eval(repr(FULL)),
        replace(FULL, format="fp16"),
    ],
    ids=["copy", "deepcopy", "pickle", "repr", "replace"],
)
def test_copy_is_equal_and_behaves_the_same(copied: hs.Policy) -> None:
    assert copied == FULL
    assert hash(copied) == hash(FULL)
    net = model()
    copied.attach(net)
    with copied.autocast("cpu"):
        assert net(torch.ones(1, 4)).dtype is torch.float32


def test_policy_cannot_be_changed() -> None:
    source = {"gelu": "fp32"}
    policy = hs.Policy("fp16", ops=source)
    source["exp"] = "fp32"
    assert dict(policy.ops) == {"gelu": "fp32"}
    with pytest.raises(TypeError, match="does not support item assignment"):
        policy.ops["exp"] = "fp32"  # type: ignore[index]


def test_policies_that_differ_in_one_field_are_not_equal() -> None:
    others = [
        replace(FULL, format="bf16"),
        replace(FULL, base="device"),
        replace(FULL, ops={}),
        replace(FULL, modules={}),
        replace(FULL, init_scale=None),
    ]
    assert all(other != FULL for other in others)


def test_policy_says_whose_list_it_shows() -> None:
    assert str(FULL) == "fp16, CUDA's op list, gelu in fp32, islands 1"
    assert str(hs.Policy("bf16")) == "bf16"
