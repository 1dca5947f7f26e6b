"""``precision.toml``: reading, writing, comments, and what is refused."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import halfstep as hs

COMMENTED = """\
# tuned on the large run
version = 1
format = "fp16"  # no BF16 on this machine
base = "cuda"

[ops]
softmax = "fp32"  # overflowed at step 200
gelu = "fp32"

[modules]
# the last block only
"blocks.*.norm" = "fp32"
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "precision.toml"
    found.write_text(COMMENTED)
    return found


def test_file_is_read(path: Path) -> None:
    expected = hs.Policy(
        "fp16", "cuda", {"softmax": "fp32", "gelu": "fp32"}, {"blocks.*.norm": "fp32"}
    )
    assert hs.Policy.load(path) == expected
    assert hs.Policy.load(str(path)) == expected


OPS = st.dictionaries(
    st.sampled_from(["softmax", "gelu", "layer_norm", "mul", "sum.dim_IntList", "aten::exp"]),
    st.sampled_from(["fp32", "low", "promote", "inputs", "fp16", "bf16"]),
)
NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1)


@settings(deadline=None, max_examples=50)
@given(
    format=st.sampled_from(["fp32", "bf16", "fp16"]),
    base=st.sampled_from(["device", "cuda"]),
    ops=OPS,
    modules=st.dictionaries(NAMES, st.just("fp32"), max_size=3),
    init_scale=st.none() | st.floats(2.0**-14, 2.0**24),
    reason=NAMES,
)
def test_policy_that_is_saved_and_loaded_is_the_same(
    tmp_path_factory: pytest.TempPathFactory, **fields: Any
) -> None:
    policy, path = hs.Policy(**fields), tmp_path_factory.mktemp("policy") / "precision.toml"
    policy.save(path)
    loaded = hs.Policy.load(path)
    assert loaded == policy
    assert loaded.reason == policy.reason
    x = torch.ones(2, 2, dtype=policy.row.dtype)
    if not fields["modules"]:
        with policy.autocast("cpu"):
            expected = torch.softmax(x, -1), torch.mul(x, x), x.exp()
        with loaded.autocast("cpu"):
            found = torch.softmax(x, -1), torch.mul(x, x), x.exp()
        assert [t.dtype for t in found] == [t.dtype for t in expected]
        assert all(map(torch.equal, found, expected))


def test_saving_keeps_comments_and_changes_values(path: Path) -> None:
    hs.Policy("bf16", "cuda", {"softmax": "low"}, {"blocks.*.norm": "fp32", "head": "fp32"}).save(
        path
    )
    assert (
        path.read_text()
        == """\
# tuned on the large run
version = 1
format = "bf16"  # no BF16 on this machine
base = "cuda"

[ops]
softmax = "low"  # overflowed at step 200

[modules]
# the last block only
"blocks.*.norm" = "fp32"
head = "fp32"
"""
    )


def test_saving_an_unchanged_policy_changes_no_byte(path: Path) -> None:
    hs.Policy.load(path).save(path)
    assert path.read_text() == COMMENTED


def test_top_level_values_added_to_a_commented_file_stay_at_the_top(path: Path) -> None:
    hs.Policy("fp16", "cuda", {"softmax": "fp32"}, init_scale=4.0, reason="why").save(path)
    assert tomllib.loads(path.read_text()) == {
        "version": 1,
        "format": "fp16",
        "base": "cuda",
        "init_scale": 4.0,
        "reason": "why",
        "ops": {"softmax": "fp32"},
    }


def test_fresh_file_needs_no_tomlkit(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tomlkit", None)
    policy = hs.Policy.load(path)
    other = path.with_name("other.toml")
    policy.save(other)
    policy.save(other)
    assert hs.Policy.load(other) == policy
    with pytest.raises(hs.BadValueError, match=r"only tomlkit can keep them: pip install 'half"):
        policy.save(path)
    assert path.read_text() == COMMENTED


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('formt = "fp16"', "unknown key 'formt'; did you mean 'format'"),
        ('format = "fp16"\nversion = 2', "is of version 2; this halfstep reads version 1. Upgrade"),
        ('format = "fp16"\nversion = "1"', "version must be a whole number, got '1'"),
        ('base = "cuda"', "has no format"),
        ("format = 16", "format must be a str, got 16"),
        ('format = "fp16"\nops = "softmax"', "ops must be a dict, got 'softmax'"),
        (
            'format = "fp16"\n[ops]\nsofmax = "fp32"',
            "precision.toml: torch has no op 'sofmax'; did",
        ),
        (
            'format = "fp16"\n[ops]\ngelu = "fp32"\ngelu = "low"',
            "gives one name twice, such as two rules",
        ),
        ('format = "fp16', "is no valid TOML"),
    ],
)
def test_bad_file_is_one_sentence(path: Path, text: str, message: str) -> None:
    path.write_text(text)
    with pytest.raises(hs.BadValueError, match=message):
        hs.Policy.load(path)


def test_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        hs.BadValueError, match=r"cannot read the policy .*none.toml': No such file"
    ):
        hs.Policy.load(tmp_path / "none.toml")


def test_another_file_is_not_overwritten(path: Path) -> None:
    path.write_text('[tool]\nname = "x"\n')
    with pytest.raises(hs.BadValueError, match="unknown key 'tool'"):
        hs.Policy("fp16").save(path)
    assert path.read_text() == '[tool]\nname = "x"\n'


def test_folder_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(hs.BadValueError, match=r"cannot write .*No such file or directory"):
        hs.Policy("fp16").save(tmp_path / "none" / "precision.toml")


def test_file_of_another_model_names_the_pattern(path: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 4))
    with pytest.raises(hs.BadValueError, match=r"'blocks.\*.norm' matches no module of Sequential"):
        hs.Engine(net, torch.optim.SGD(net.parameters()), precision=path)
