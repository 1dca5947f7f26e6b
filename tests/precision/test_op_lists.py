"""The lists that we read from torch against what torch registers, documents and does."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from documented_ops import TO_FLOAT16, TO_FLOAT32, TO_WIDEST
from observed_categories import observed_category

import halfstep as hs
from halfstep.precision import listed_ops, op_list
from halfstep.precision import op_lists as lists
from halfstep.precision.op_lists import recorded_list
from halfstep.precision.op_names import find_overload, overloads_named

# Documentation names that are no op of their own.
PYTHON_ONLY = {
    "__matmul__": "matmul",
    "__pow__": "pow",
    "__rpow__": "pow",
    "__rdiv__": "reciprocal",
    "__rtruediv__": "reciprocal",
    "GRUCell": "gru_cell",
    "LSTMCell": "lstm_cell",
    "RNNCell": "rnn_tanh_cell",
    "multi_dot": "linalg_multi_dot",
    "grid_sample": "grid_sampler",
    "softmin": "softmax",
    "normalize": "linalg_vector_norm",
    "cross_entropy": "log_softmax",
}


def registered(device: str) -> set[str]:
    """What torch registers, seen by a process in which halfstep registered nothing."""
    code = (
        "import json, torch; print(json.dumps(torch._C."
        f"_dispatch_get_registrations_for_dispatch_key('Autocast{device.upper()}')))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    return {name.removeprefix("aten::") for name in json.loads(output)}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_op_list_has_the_ops_that_torch_registers(device: str) -> None:
    # cuDNN's recurrent nets are on CUDA's list, and known only to a torch that was built with cuDNN
    with_cudnn = {"_cudnn_rnn"} if device == "cuda" else set()
    found = registered(device)
    assert with_cudnn <= found or not torch.backends.cudnn.is_available()
    assert set(op_list(device)) == found | with_cudnn


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_op_has_the_category_that_torch_shows(device: str) -> None:
    found = {
        name: (category, observed_category(find_overload(name), device))
        for name, category in op_list(device).items()
        if name != "_cudnn_rnn" and "dimname" not in name.lower() and ".names_" not in name
    }  # cuDNN asks the device; a named dimension cannot be handed over from Python
    assert len(found) > 100
    assert {name: pair for name, pair in found.items() if pair[0] != pair[1]} == {}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_recorded_list_equals_the_one_in_use(device: str) -> None:
    recorded = recorded_list(device)
    assert {name: recorded.get(name) for name in op_list(device)} == dict(op_list(device))


NAMED = """
    prod.dim_Dimname softmax.Dimname log_softmax.Dimname cumprod.dimname cumsum.dimname
    sum.dim_DimnameList norm.names_ScalarOpt_dim
"""
# torch version -> device -> recorded ops that this torch does not list
NOT_LISTED = {
    "2.10": {"cpu": "linalg_matrix_sqrth", "cuda": "linalg_matrix_sqrth rms_norm"},
    "2.13": {
        "cpu": "linalg_matrix_sqrth prod.dim_Dimname index_copy.dimname",
        "cuda": f"linalg_matrix_sqrth {NAMED}",
    },
    "2.14": {"cpu": "cholesky qr prod.dim_Dimname index_copy.dimname", "cuda": NAMED},
}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_record_holds_no_more_than_the_lists_of_its_versions(device: str) -> None:
    version = ".".join(torch.__version__.split(".")[:2])
    if version not in NOT_LISTED:
        pytest.skip(f"the list of torch {version} was not recorded")
    absent = set(recorded_list(device)) - set(op_list(device))
    assert absent == set(NOT_LISTED[version][device].split())


def test_list_without_the_header_is_the_recorded_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with_header = dict(op_list("cuda"))
    monkeypatch.setattr(lists, "registered_ops", lambda device: [*with_header])
    monkeypatch.setattr(lists, "_HEADER", lists._HEADER.with_name("no such header"))
    assert dict(lists._op_list.__wrapped__("cuda")) == with_header


NEWER = """
import halfstep as hs, torch
from halfstep.precision import op_list, recorded
for ops in recorded.RECORDED.values():
    ops["fp32"] = ops["fp32"].replace(" mse_loss ", " ").replace(" softmax.int ", " ")
from halfstep.precision import op_lists
op_lists._HEADER = op_lists._HEADER.with_name("no such header")
x = torch.ones(2, 2).half()
with hs.Policy("fp16", base="cuda").autocast("cpu"):
    found = [torch.softmax(x, -1).dtype, torch.nn.functional.mse_loss(x, x).dtype]
print(op_list("cpu")["mse_loss"], op_list("cuda")["softmax.int"], *found)
"""


def test_op_that_is_newer_than_the_record_is_unknown_and_left_to_the_device() -> None:
    # in a process of its own, whose record lacks two ops: softmax stays in FP16 on a CPU
    run = subprocess.run([sys.executable, "-c", NEWER], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["unknown", "unknown", "torch.float16", "torch.float32"]


def test_header_without_a_macro_is_refused() -> None:
    with pytest.raises(hs.BadValueError, match="has no macro AT_FORALL_LOWER_PRECISION_FP"):
        lists.parse_header("#define SOMETHING_ELSE 1\n")


@pytest.mark.parametrize(
    ("names", "category"),
    [(TO_FLOAT16, "low"), (TO_FLOAT32, "fp32"), (TO_WIDEST, "promote")],
    ids=["low", "fp32", "promote"],
)
def test_cuda_list_agrees_with_the_documentation(names: list[str], category: str) -> None:
    for name in names:
        overloads = overloads_named(PYTHON_ONLY.get(name, name))
        assert category in {op_list("cuda").get(o) for o in overloads}, name


def test_ops_that_differ_are_marked() -> None:
    by_name = {row.name: row for row in listed_ops()}
    assert (by_name["softmax.int"].cpu, by_name["softmax.int"].cuda) == ("inputs", "fp32")
    assert by_name["softmax.int"].differs
    assert not by_name["linear"].differs


def test_list_of_an_unknown_device_names_the_nearest() -> None:
    with pytest.raises(hs.BadValueError, match=r"got 'cuda0'; did you mean 'cuda'\?"):
        op_list("cuda0")


def test_op_that_is_not_listed_is_shown_as_inputs() -> None:
    (row,) = listed_ops(op="gelu")
    assert (row.cpu, row.cuda, row.differs) == ("inputs", "inputs", False)
