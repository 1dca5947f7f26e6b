"""The doctor's records survive JSON, with inf, NaN and what is not there."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest

import halfstep as hs
from halfstep.records import (
    Cause,
    Diagnosis,
    DtypeRow,
    Equality,
    GradientError,
    GradientRange,
    GradientRow,
    LayerRecord,
    LostUpdates,
    OpRecord,
    PassError,
    PassRecord,
    RangeRecord,
    ScaleWindow,
    Symptom,
    TraceRecord,
    TrainingCurve,
)

RANGE = RangeRecord("fp16", 0.5, 0.1, 0.2, 0.0, {-24: 3, 2: 1})
OP = OpRecord(
    index=3,
    op="aten.pow",
    phase="backward",
    module="Net.body",
    output=0,
    occurrence=1,
    source="net.py:12",
    gradient_of="PowBackward0",
    inputs=("float16", "float32"),
    dtype="float16",
    shape=(2, 3),
    largest=math.inf,
    finite_fraction=0.5,
    largest_finite=60000.0,
    range=RANGE,
)
DIAGNOSIS = Diagnosis(
    recipe="mine",
    device="cpu",
    torch="2.13.0",
    policy="cuda",
    health="precision",
    headline="FP16 overflows in aten.pow.",
    causes=(
        Cause("overflow", "overflow", ("fp16",), True,
              "error", "Net", OP, "", 1e9, 13.9, "e", "x", "r"),
        Cause("bad_batch", "input", ("fp32",), False,
              "error", "", None, "x", math.nan, 0.0, "", "", ""),
    ),
    passes=(
        PassRecord(
            "fp32", "fp32", 1.0, 0.5, math.nan, 0.25, 7, None,
            (LayerRecord("Net", "Net", "forward", "float32", (2,), -math.inf, 1.0),),
        ),
        PassRecord("fp16", "fp16", 1.0, math.inf, 1.0, 0.0, 7, OP, ()),
    ),
    gradient_range=GradientRange(
        (GradientRow("w", "parameter", False, "Net", 0.0, 1e-9, 1.0, {-30: 2}),),
        (ScaleWindow("fp16", None, 4.0, 1.0, 0.01, {0: 0.5, 1: 0.25}, "w", 0.5),),
    ),
    lost_updates=(LostUpdates("w", "bfloat16", 0.5, 0.25, 0.25, 1.0),),
    equality=Equality(
        (PassError("bf16", 0.1, 0.1, 0.9, 0.1, (GradientError("w", math.nan, 0.1, 1.0),)),),
        (TrainingCurve("fp32", (1.0, math.nan), 0, "finished"),),
        0.25,
        {"bf16": -0.125},
    ),
    symptoms=(Symptom("custom-op", "an op of your own gives NaN", None, "", ""),),
    dtypes=(DtypeRow("layer", "Net", {"fp32": "float32"}, ()),),
)  # fmt: skip


def test_diagnosis_round_trips_through_strict_json() -> None:
    text = json.dumps(DIAGNOSIS.to_dict(), allow_nan=False)
    again = hs.Diagnosis.from_dict(json.loads(text))
    # NaN is not equal to itself, so the second text is compared; tuples, ints as keys by repr
    assert json.dumps(again.to_dict(), allow_nan=False) == text
    assert repr(again) == repr(DIAGNOSIS)


def test_trace_round_trips_through_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    fine = dataclasses.replace(OP, index=2, largest=1.0, range=None)
    TraceRecord((fine, OP)).save(path)
    assert len(path.read_text().splitlines()) == 2
    assert TraceRecord.load(path) == TraceRecord((fine, OP))
    assert TraceRecord.load(path).first_bad == OP


def test_field_of_another_version_is_an_error_that_names_it() -> None:
    with pytest.raises(hs.BadValueError, match="OpRecord has no field 'colour'; the file was"):
        OpRecord.from_dict({**OP.to_dict(), "colour": 3})


def test_missing_field_is_an_error_that_names_it() -> None:
    data = {k: v for k, v in OP.to_dict().items() if k != "shape"}
    with pytest.raises(hs.BadValueError, match=r"this is no OpRecord: .*'shape'"):
        OpRecord.from_dict(data)


def test_place_says_op_module_phase_and_line() -> None:
    assert OP.place == "aten.pow (PowBackward0) in Net.body (backward, float16, net.py:12)"
    outside = dataclasses.replace(OP, module="", source="", gradient_of="")
    assert outside.place == "aten.pow in the loss function (backward, float16)"


@pytest.mark.parametrize(
    ("lowest", "highest", "empty"),
    [(1.0, 4.0, False), (8.0, 4.0, True), (None, 4.0, True), (1.0, None, True)],
)
def test_window_of_scales_is_empty_where_no_scale_fits(
    lowest: float | None, highest: float | None, empty: bool
) -> None:
    row = ScaleWindow("fp16", lowest, highest, None, 0.01, {}, "", 0.0)
    assert row.is_empty is empty
