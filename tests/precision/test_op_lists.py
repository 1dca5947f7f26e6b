"""The lists that we read from torch against what torch registers, documents and does."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from documented_ops import TO_FLOAT16, TO_FLOAT32, TO_WIDEST

import halfstep as hs
from halfstep.precision import listed_ops, op_list
from halfstep.precision import op_lists as lists
from halfstep.precision.op_lists import recorded_list
from halfstep.precision.op_names import overloads_named

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
    assert set(op_list(device)) == registered(device)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_recorded_list_equals_the_one_in_use(device: str) -> None:
    assert recorded_list(device, "2.13.0") == dict(op_list(device))


def test_list_without_the_header_is_the_recorded_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with_header = dict(op_list("cuda"))
    monkeypatch.setattr(lists, "_HEADER", lists._HEADER.with_name("no such header"))
    assert dict(lists._op_list.__wrapped__("cuda")) == with_header


def test_recorded_list_of_another_version_is_that_of_the_nearest() -> None:
    assert recorded_list("cuda", "2.99.1") == recorded_list("cuda", "2.13.0")


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
