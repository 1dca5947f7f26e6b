"""Where each format fails, layer by layer."""

from __future__ import annotations

import math
from dataclasses import replace

from made_diagnoses import FORMATS, made_pass, modules

from halfstep.report.layer_table import headroom_chart, interesting, layer_rows

PATHS = modules(6)
BREAKS_AT_4 = [made_pass(name, PATHS, 4 if "fp16" in name else None) for name in FORMATS]


def test_rows_are_forward_then_backward_with_a_cell_per_pass() -> None:
    rows = layer_rows(BREAKS_AT_4)
    assert [(row.module, row.phase) for row in rows] == [
        *((path, "forward") for path in PATHS),
        *((path, "backward") for path in PATHS),
    ]
    assert [cell and cell.dtype for cell in rows[0].cells] == [*FORMATS.values()]


def test_first_failure_of_each_pass_is_marked_once() -> None:
    marked = {row.module: row.first_in for row in layer_rows(BREAKS_AT_4) if row.first_in}
    assert marked == {PATHS[4]: ("fp16", "fp16 scaled")}


def test_failure_in_backward_alone_is_marked_there() -> None:
    sound = made_pass("fp16 scaled", PATHS)
    last = sound.layers[-1]
    broken = replace(sound, layers=(*sound.layers[:-1], replace(last, largest=math.nan)))
    (row,) = [row for row in layer_rows([made_pass("fp32", PATHS), broken]) if row.first_in]
    assert (row.module, row.phase, row.first_in) == (PATHS[-1], "backward", ("fp16 scaled",))


def test_module_that_runs_twice_has_two_rows() -> None:
    one = made_pass("fp32", ["Net.shared", "Net.shared"])
    assert [row.module for row in layer_rows([one]) if row.phase == "forward"] == ["Net.shared"] * 2


def test_pass_that_did_not_come_to_a_layer_has_no_cell_there() -> None:
    whole, short = made_pass("fp32", PATHS), made_pass("fp16", PATHS)
    rows = layer_rows([whole, replace(short, layers=short.layers[:2])])
    assert [row.cells[1] is not None for row in rows[:3]] == [True, True, False]


def test_interesting_rows_surround_failures_and_the_largest_values() -> None:
    paths = modules(100)
    rows = layer_rows([made_pass("fp32", paths), made_pass("fp16", paths, breaks_at=50)])
    kept = [(row.module, row.phase) for row in interesting(rows)]
    forward = [*range(48, 53), 97, 98, 99]  # activations grow, gradients shrink
    assert kept == [
        *((paths[n], "forward") for n in forward),
        *((paths[n], "backward") for n in (0, 1, 2)),
    ]


def test_headroom_chart_marks_the_first_layer_that_breaks_in_fp16() -> None:
    found = headroom_chart(BREAKS_AT_4)
    assert found is not None
    (mark,) = found.skips
    assert math.isclose(mark.left, 100 * 4 / 6, abs_tol=0.001)  # the fifth of six layers
    # 4^6 = 2^12 is the largest of six layers; FP16 ends below 2^16
    assert found.summary == "the largest result has 4.0 bits of headroom in FP16"
    assert [line.name for line in found.lines] == [
        "forward: result",
        "backward: gradient at scale 65,536",
    ]


def test_headroom_of_a_network_beyond_fp16_is_told_in_bits() -> None:
    found = headroom_chart([made_pass("fp32", modules(10))])  # 4^10 = 2^20
    assert found is not None
    assert found.summary == "the largest result is 4.0 bits beyond FP16"


def test_headroom_without_an_fp32_pass_is_no_chart() -> None:
    assert headroom_chart([made_pass("fp16", PATHS)]) is None
    assert headroom_chart([]) is None
